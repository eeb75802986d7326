// The processes on the cards: whose the memory is.

import { $, el, redraw } from "./draw.js";
import { figure } from "./format.js";
import { t } from "./words.js";

export function show({ processes }) {
  $("processes").hidden = processes.length === 0;
  redraw($("process-list"), [processes, t("processes")], () => {
    const head = ["process", "pid", "cards", "memory", "belongs"].map((key) => el("th", { scope: "col" }, t(key)));
    return el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...processes.map(row)));
  });
}

function row({ gpu, pid, name, mib, own }) {
  // A driver that does not know what a process uses reports 0.
  const size = mib ? `${figure(mib, 0)} MiB` : "–";
  const whose = own === null ? "–" : t(own ? "engine" : "part-others");
  return el("tr", { data: { pid } },
    el("th", { scope: "row", translate: false }, name || t("no-name")), el("td", {}, String(pid)),
    el("td", {}, t("card", { n: gpu })), el("td", {}, size), el("td", {}, whose));
}
