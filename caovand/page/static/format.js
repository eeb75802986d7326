// Numbers, times and sizes as people read them, in the page's language.

import { language, t } from "./words.js";

const number = (digits) =>
  new Intl.NumberFormat(language(), { maximumFractionDigits: digits, minimumFractionDigits: digits });

/** As many digits as people read; a dash for what is unknown. */
export function figure(value, digits) {
  if (value === null || value === undefined) return "–";
  const fitting = digits ?? (Math.abs(value) >= 100 || value === 0 ? 0 : 1);
  return number(fitting).format(value);
}

export function percent(share, digits = 0) {
  return share === null || share === undefined ? "–" : `${figure(share * 100, digits)} %`;
}

export function gib(mib) {
  return figure(mib / 1024, 1);
}

/** A short time: milliseconds below a second. */
export function brief(seconds) {
  if (seconds === null || seconds === undefined) return ["–", ""];
  return seconds < 1 ? [figure(seconds * 1000, seconds < 0.1 ? 1 : 0), "ms"] : [figure(seconds, 1), "s"];
}

/** Format a duration in the largest unit that gives at least 2, as caovanctl does. */
export function duration(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return t(`n-${unit}`, { n: figure(seconds / size, 0) });
  }
  return t("n-s", { n: figure(Math.floor(seconds), 0) });
}

const two = (value) => String(value).padStart(2, "0");

export function clock(at) {
  const moment = new Date(at * 1000);
  return `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
}

export function day(at) {
  const moment = new Date(at * 1000);
  return `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
}

/** The time of day, and the day where it is not today. */
export function moment(at) {
  const today = day(Date.now() / 1000);
  return day(at) === today ? clock(at) : `${day(at)} ${clock(at)}`;
}
