// What scrolls inside its own box can be scrolled with the keyboard: it takes the focus while it is wider than its box.
const boxes = document.querySelectorAll("pre, .table-wrapper");
const update = () => boxes.forEach((box) => {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
});
update();
addEventListener("resize", update);
