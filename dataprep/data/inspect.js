"use strict";
// Searches and sorts the tables of classes. Without this script they are whole, the largest class first.
for (const part of document.querySelectorAll(".classes")) {
  const body = part.querySelector("tbody"), rows = [...body.rows];
  const input = part.querySelector("input"), shown = part.querySelector("output");
  const name = row => row.cells[0].textContent, count = row => Number(row.cells[1].textContent.replaceAll(",", ""));
  const compare = [(a, b) => name(a).localeCompare(name(b), "en", {numeric: true}), (a, b) => count(a) - count(b)];
  const search = () => {
    const words = input.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !name(row).toLowerCase().includes(words);
    const found = rows.filter(row => !row.hidden).length;
    shown.textContent = `${found.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
  };
  for (const head of part.querySelectorAll("th")) {
    head.querySelector("button").addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      rows.sort((a, b) => sign * compare[head.cellIndex](a, b));
      body.append(...rows);
    });
  }
  input.addEventListener("input", search);
  input.closest("p").hidden = false;
  search();
}
