"use strict";
// Shows every new look. When the command has ended or cannot be reached, the last look stays, and a line says so.
const interval_ms = Number(document.querySelector("main > [data-interval-ms]").dataset.intervalMs);
setInterval(async () => {
  try {
    const answer = await fetch("/", {signal: AbortSignal.timeout(10000)});
    if (!answer.ok) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = page.title;
    document.querySelector("main").replaceWith(page.querySelector("main"));
  } catch {
    document.querySelector("main > [data-interval-ms]").hidden = false;
  }
}, interval_ms);
