// Questions to the page's server, whose refusals have a fact and a remedy.

import { t } from "./words.js";

export class Refused extends Error {
  constructor(status, problem) {
    super(problem?.fact ?? problem?.message ?? `HTTP ${status}`); // an engine has a message
    this.status = status;
    this.problem = problem;
  }
}

export async function ask(path, query = {}) {
  const known = Object.entries(query).filter(([, value]) => value);
  const url = known.length ? `${path}?${new URLSearchParams(known)}` : path;
  const answer = await fetch(url, { cache: "no-store" });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

export async function refusal(answer) {
  const found = await answer.json().catch(() => null);
  return new Refused(answer.status, found?.error);
}

/** A refusal as people read it. */
export function problemText(problem) {
  const { cannot, fact, remedy } = problem.problem ?? {};
  if (!fact) return problem.message;
  const said = cannot ? t("cannot", { cannot, fact }) : fact;
  return remedy ? `${said}; ${remedy}` : said;
}
