// The engine's latest lines. It follows the end unless the reader has scrolled up.

import { $, el } from "./draw.js";
import { figure } from "./format.js";
import { t } from "./words.js";

const MOST = 1000;
const place = $("log-lines");
const button = $("log-end");
let follows = true;
let unread = 0;

place.addEventListener("scroll", () => {
  follows = place.scrollHeight - place.scrollTop - place.clientHeight < 8;
  if (follows) unread = 0;
  label();
});
button.addEventListener("click", toEnd);

export function add(lines) {
  place.querySelector(".nothing")?.remove();
  place.append(...lines.map((line) => el("div", { class: kind(line) }, line || " ")));
  const more = place.childElementCount - MOST;
  // What somebody is reading must not move: the oldest lines go once the end is followed again.
  if (more > 0 && (follows || more > MOST)) {
    const range = document.createRange();
    range.setStart(place, 0);
    range.setEnd(place, more);
    range.deleteContents();
  }
  if (follows) place.scrollTop = place.scrollHeight;
  else unread += lines.length;
  label();
}

/** Another engine's lines are to come. */
export function clear() {
  place.replaceChildren(el("p", { class: "nothing" }, t("no-log")));
  [follows, unread] = [true, 0];
  label();
}

export function label() {
  button.hidden = follows;
  button.textContent = unread ? t("follow", { n: figure(unread, 0) }) : t("to-end");
  const none = place.querySelector(".nothing");
  if (none) none.textContent = t("no-log");
}

function toEnd() {
  place.scrollTop = place.scrollHeight;
  [follows, unread] = [true, 0];
  label();
  place.focus();
}

function kind(line) {
  if (/\b(ERROR|CRITICAL|Traceback|\w+Error:)/.test(line)) return "error";
  return /\bWARN(ING)?\b/.test(line) ? "warn" : "";
}
