// Counts times on between two answers of the server, and asks for the live part of a page where no stream arrives.
"use strict";
(() => {
  const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const short = (seconds) => {
    const first = UNITS.findIndex(([, unit]) => seconds >= unit);
    if (first < 0) return "0s";
    const [name, unit] = UNITS[first];
    const next = UNITS[first + 1];
    const rest = next ? Math.floor((seconds % unit) / next[1]) : 0;
    return Math.floor(seconds / unit) + name + (rest ? " " + rest + next[0] : "");
  };
  // The server's clock counts, since that of the browser may be wrong.
  let drift = 0;
  const count = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      if (Number.isNaN(at)) continue;
      const ahead = Math.round((at - Date.now() - drift) / 1000);
      time.textContent = ahead >= 0 ? "in " + short(ahead) : short(-ahead) + " ago";
    }
  };
  // Who presses a link or has marked a text must not lose it to a newer part, and neither the place of the keyboard.
  let pressed = false, focused = null;
  document.addEventListener("pointerdown", () => { pressed = true; });
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => { pressed = false; });
  const keeps = (event) => {
    const live = document.getElementById("live");
    const marked = document.getSelection();
    if (pressed || (live && !marked.isCollapsed && live.contains(marked.anchorNode))) event.preventDefault();
    focused = live && live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  };
  const focusAgain = () => {
    const link = focused && document.querySelector(`#live a[href="${CSS.escape(focused)}"]`);
    if (link) link.focus({ preventScroll: true });
    focused = null;
  };
  document.addEventListener("htmx:sseBeforeMessage", keeps);
  document.addEventListener("htmx:beforeSwap", keeps);
  document.addEventListener("htmx:afterSwap", focusAgain);
  document.addEventListener("htmx:sseMessage", focusAgain);
  let heard = Date.now();
  document.addEventListener("htmx:sseMessage", () => { heard = Date.now(); count(); });
  document.addEventListener("htmx:afterSwap", () => { heard = Date.now(); count(); });
  document.addEventListener("DOMContentLoaded", () => {
    const now = Date.parse(document.body.dataset.now);
    if (!Number.isNaN(now)) drift = now - Date.now();
    count();
    setInterval(count, 1000);
    setInterval(() => {
      const live = document.getElementById("live");
      if (!live) return;
      const silent = Date.now() - heard;
      // The server repeats nothing that stayed the same, so silence alone is no fault: it is asked.
      if (silent > 5000 && !document.hidden) { heard = Date.now(); htmx.trigger(live, "ask"); }
    }, 1000);
  });
  const lost = (is) => document.body.classList.toggle("lost", is);
  document.addEventListener("htmx:sendError", () => lost(true));
  document.addEventListener("htmx:responseError", () => lost(true));
  document.addEventListener("htmx:afterSwap", () => lost(false));
  document.addEventListener("htmx:sseMessage", () => lost(false));
})();
