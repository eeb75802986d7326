// What the daemon decided, latest first; and its failures, each with its evidence.

import { $, copier, el, icon, redraw } from "./draw.js";
import { clock, day, moment } from "./format.js";
import { ask, problemText } from "./ask.js";
import { explained, t } from "./words.js";

const MOST = 100;

export function showEvents(events) {
  const latest = events.slice(-MOST).reverse();
  redraw($("event-list"), [latest.map((one) => [one.seq, one.at]), t("events")], () => {
    if (latest.length === 0) return el("li", { class: "nothing" }, t("no-events"));
    return latest.map((one) => {
      const at = el("time", { dateTime: new Date(one.at * 1000).toISOString(), title: day(one.at) }, clock(one.at));
      return el("li", { data: { kind: one.kind, seq: one.seq } }, at, el("span", { class: "kind" }, one.kind),
        el("span", { class: "text", lang: "en" }, one.text));
    });
  });
}

export async function showIncidents(model) {
  const place = $("incident-list");
  let found;
  try {
    found = (await ask("/api/incidents", { model })).incidents;
  } catch (problem) {
    redraw(place, [problem.message], () => el("p", { class: "nothing" }, problemText(problem)));
    return;
  }
  redraw(place, [found, model, t("incidents")], () => {
    if (found.length === 0) return el("p", { class: "nothing" }, t("no-incidents"));
    return [...found].reverse().map((one) => row(one, model));
  });
}

function row(one, model) {
  const at = Date.parse(one.at.replace(/([+-]\d\d)(\d\d)$/, "$1:$2")) / 1000;
  const [cause] = explained(one.failure);
  const button = el("button", { type: "button", class: "incident" },
    icon("failed"),
    el("span", { class: "incident-name" }, `${one.number} · ${one.failure}`),
    el("time", {}, Number.isFinite(at) ? moment(at) : one.at),
    el("span", { class: "text" }, cause && `${cause} · `, el("span", { lang: "en" }, one.text)),
    el("span", { class: "action", lang: "en" }, one.action && `→ ${one.action}`));
  button.addEventListener("click", () => open(one, model));
  return button;
}

async function open(one, model) {
  const dialog = $("report");
  const shut = el("button", { type: "button", class: "quiet" }, t("close"));
  shut.addEventListener("click", () => dialog.close());
  const title = t("report-title", { n: one.number, failure: one.failure });
  const body = el("div", { class: "report-body", tabIndex: 0, role: "group", "aria-label": title });
  dialog.replaceChildren(
    el("div", { class: "head" }, el("h2", { id: "report-title" }, title), shut), body);
  dialog.showModal();
  try {
    body.append(...report(one.failure, await ask(`/api/incidents/${one.number}`, { model })));
  } catch (problem) {
    body.append(el("p", { class: "nothing" }, problemText(problem)));
  }
}

function report(failure, { remedy, obstacles, answer, cause, text }) {
  const shown = explained(failure).map((line) => el("p", {}, line));
  if (remedy) shown.push(el("p", { lang: "en" }, t("remedy", { text: remedy })));
  for (const one of obstacles) shown.push(el("p", { lang: "en" }, t("obstacle", { text: one })));
  if (answer.length > 0) {
    shown.push(el("h3", {}, t("meaning")), el("pre", { lang: "en" }, answer.map((line) => `${line.trim()}\n`).join("")));
  }
  if (cause) {
    shown.push(el("h3", {}, t("cause-line")), el("pre", { class: "cause", translate: false },
      ...cause.before.slice(-5).map((line) => `${line}\n`), el("mark", {}, `${cause.line}\n`),
      ...cause.after.slice(0, 5).map((line) => `${line}\n`)));
  }
  const head = el("div", { class: "head" }, el("h3", {}, t("whole-report")), copier(text, t("copy"), t("copied")));
  return [...shown, head, el("pre", { translate: false }, text)];
}
