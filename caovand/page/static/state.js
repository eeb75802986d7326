// What the engine is doing now, and what is wrong or was.

import { $, copier, el, icon, redraw, say } from "./draw.js";
import { duration, figure, moment, percent } from "./format.js";
import { explained, t } from "./words.js";

const STEPS = ["plan", "launch", "load", "prepare", "prove"];
// A failure is what matters in these; in the others it is past.
const FAILING = new Set(["RECYCLING", "BACKOFF", "HOLD", "FAILED"]);

const WIDE = new Set(["model", "endpoint"]);

const parts = {};

function skeleton(place) {
  if (place.firstChild) return;
  parts.icon = el("span", { class: "state-icon" });
  parts.word = el("h2", { id: "state", "aria-live": "polite" });
  parts.name = el("code", { class: "state-name" });
  parts.since = el("span", { class: "since" });
  parts.about = el("p", { class: "about" });
  parts.start = el("div", { class: "startup" });
  parts.facts = el("dl", { class: "facts" });
  parts.notices = el("div", { class: "notices" });
  const head = el("div", { class: "state-line" }, parts.icon, parts.word, parts.name, parts.since);
  place.append(el("div", { class: "now-head" }, head, parts.about, parts.start), parts.facts, parts.notices);
}

export function show(status) {
  const place = $("now");
  skeleton(place);
  place.dataset.state = status.state;
  place.dataset.phase = status.phase;
  redraw(parts.icon, [status.state], () => icon(status.state.toLowerCase()));
  say(parts.word, t(status.state) || status.state);
  say(parts.name, status.state);
  parts.name.hidden = t(status.state).toUpperCase() === status.state;
  say(parts.since, t("for", { time: duration(status.since_s) }));
  say(parts.about, about(status));
  document.title = `${t(status.state) || status.state} · ${status.served?.name ?? basename(status.model)} · caovan`;
  startup(status);
  facts(status);
  notices(status);
}

function about(status) {
  const failure = status.last_failure?.text;
  const own = status.reason && status.reason !== failure ? status.reason : t(`about-${status.state}`);
  const said = status.state === "SERVING" || status.state === "STARTING" ? t(`about-${status.state}`) : own;
  if (status.looking) return `${said} ${t("looking")}`;
  if (status.retry_in_s === null) return said;
  return `${said} ${t("attempt-in", { time: duration(status.retry_in_s) })}`;
}

function startup(status) {
  parts.start.hidden = status.state !== "STARTING";
  if (parts.start.hidden) return;
  redraw(parts.start, [status.phase, status.step, status.detail, status.progress, t("done")], () => {
    const at = STEPS.indexOf(status.step);
    const steps = STEPS.map((name, index) => {
      const how = index < at ? "done" : index === at ? "current" : "";
      const step = el("li", { class: how, "aria-current": how === "current" ? "step" : null });
      step.append(t(`step-${name}`), el("span", { class: "read" }, how === "done" ? ` (${t("done")})` : ""));
      return step;
    });
    const bar = el("progress", { max: 1, "aria-label": t("progress") });
    if (status.progress !== null) bar.value = status.progress;
    const words = [t("phase", { phase: status.phase_title ?? status.phase }), status.detail];
    if (status.progress !== null) words.push(percent(status.progress));
    return [
      el("ol", { class: "steps", "aria-label": t("startup") }, ...steps),
      bar,
      el("p", { class: "step-words" }, words.filter(Boolean).join(" · ")),
    ];
  });
}

function facts(status) {
  const seen = [
    status.served, status.model, status.mode, status.mode_origin, status.engine_mode, status.mtp,
    status.engine_pid, status.restarts, status.start?.seconds, status.task, t("model"),
  ];
  redraw(parts.facts, seen, () => {
    const rows = [];
    const row = (name, ...values) =>
      rows.push(el("div", { class: WIDE.has(name) ? "wide" : null }, el("dt", {}, t(name)), el("dd", {}, ...values)));
    const path = status.model ?? "–";
    row("model", el("b", { title: path }, status.served?.name ?? basename(path)),
      el("small", { title: path }, path));
    if (status.served) {
      const url = status.served.url;
      row("endpoint", el("code", {}, url), copier(url, t("copy"), t("copied")));
    }
    if (status.task && status.task !== "generate") row("task", t(`task-${status.task}`));
    const later = status.engine_mode && status.engine_mode !== status.mode;
    const from = t(later ? "mode-later" : "mode-from", { mode: status.engine_mode, origin: status.mode_origin });
    row("mode", el("b", {}, status.mode), el("small", {}, from));
    if (status.mtp !== null) {
      row("drafting", status.mtp ? t("mtp-depth", { depth: status.mtp }) : t("mtp-off"));
    }
    row("engine", status.engine_pid
      ? t("engine-pid", { pid: status.engine_pid, restarts: figure(status.restarts, 0) })
      : t("no-engine"));
    if (status.start) row("last-start", duration(status.start.seconds));
    return rows;
  });
}

export function basename(path) {
  return path ? path.split("/").filter(Boolean).pop() ?? path : "–";
}

function notices(status) {
  const past = status.last_failure && !FAILING.has(status.state);
  const found = [
    status.state, status.degraded, status.warnings, status.refusal, status.last_failure, status.remedy,
    status.obstacles, status.failures, t("failure"),
    past ? Math.floor(status.last_failure_s / 60) : 0,
  ];
  redraw(parts.notices, found, () => {
    const shown = [];
    if (status.last_failure) shown.push(failure(status, past));
    if (status.degraded) {
      const { rungs, since, why, back } = status.degraded;
      shown.push(notice("degraded", titled(t("degraded"), rungs.join(", ")),
        [...why, back], since ? t("since", { moment: moment(since) }) : ""));
    }
    if (status.refusal) shown.push(notice("warning", titled(t("refused"), status.refusal.failure), [status.refusal.text], "",
        explained(status.refusal.failure)));
    const warnings = status.warnings;
    if (warnings.length) shown.push(notice("warning", t(warnings.length > 1 ? "warnings" : "warning"), warnings));
    return shown;
  });
}

function failure(status, past) {
  const { failure: name, text, phase } = status.last_failure;
  const title = titled(past ? t("failed-before", { ago: duration(status.last_failure_s) }) : t("failure"), name);
  const lines = [text];
  if (status.remedy) lines.push(t("remedy", { text: status.remedy }));
  for (const obstacle of status.obstacles) lines.push(t("obstacle", { text: obstacle }));
  const extra = [t("in-phase", { phase })];
  if (status.failures > 1) extra.push(t("in-a-row", { n: status.failures }));
  return notice(past ? "past" : "failed", title, lines, extra.join(" · "), explained(name));
}

const titled = (title, what) => t("titled", { title, what });

export function notice(kind, title, lines, extra = "", explanation = []) {
  const head = el("p", { class: "notice-title" }, el("b", {}, title), extra && el("small", {}, extra));
  const own = explanation.map((line) => el("p", {}, line));
  const body = el("div", {}, head, ...own, ...lines.map((line) => el("p", { lang: "en" }, line)));
  return el("div", { class: `notice ${kind}` }, icon(kind === "past" ? "failed" : kind), body);
}
