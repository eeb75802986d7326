// Each setting of the plan with its origin and its reason, and the command line that came of it.

import { $, copier, el, icon, redraw } from "./draw.js";
import { ask, problemText } from "./ask.js";
import { t } from "./words.js";

export async function show(model) {
  const place = $("plan-body");
  let plan;
  try {
    plan = await ask("/api/plan", { model });
  } catch (problem) {
    redraw(place, [problem.message, t("plan")], () => el("p", { class: "nothing" }, problemText(problem)));
    return;
  }
  redraw(place, [plan, t("plan")], () => (plan ? shown(plan) : el("p", { class: "nothing" }, t("no-plan"))));
}

function shown(plan) {
  return [
    ...plan.warnings.map((text) =>
      el("div", { class: "notice warning" }, icon("warning"), el("p", { lang: "en" }, text))),
    table(plan.settings, t("setting")),
    Object.keys(plan.env).length
      ? el("details", {}, el("summary", {}, t("environment")), table(plan.env, t("variable"))) : null,
    plan.extra_args.length
      ? el("p", { class: "below extra" }, t("extra-args", { args: plan.extra_args.map(quoted).join(" ") })) : null,
    command(plan.argv),
  ].filter(Boolean);
}

function table(settings, title) {
  const heads = [title, t("value"), t("origin"), t("reason")];
  const rows = Object.entries(settings).map(([name, setting]) =>
    el("tr", { class: setting.value === null ? "unset" : "" },
      el("th", { scope: "row" }, name),
      el("td", { class: "value", data: { label: heads[1] } }, valueText(setting.value)),
      el("td", { class: `from ${setting.origin}`, data: { label: heads[2] } },
        el("span", {}, t(`origin-${setting.origin}`) || setting.origin)),
      el("td", { class: "why", lang: "en", data: { label: heads[3] } }, setting.reason)));
  return el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, ...rows));
}

function valueText(value) {
  if (value === null) return t("left-out");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function command(argv) {
  if (!argv?.length) return null;
  const text = argv.map(quoted).join(" ");
  return el("div", { class: "command" }, el("h3", {}, t("command")),
    el("div", { class: "command-line" }, el("code", { translate: false }, text), copier(text, t("copy"), t("copied"))));
}

/** A word as a shell reads it. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`;
}
