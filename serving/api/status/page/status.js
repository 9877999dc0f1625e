// Asks the server once a second, while somebody looks, and draws what it says.

import { Chart } from "./chart.js";
import { Fabric } from "./fabric.js";
import { count, duration, span, words } from "./format.js";

const PATIENCE_MS = 5000;
const LONGEST_WAIT_MS = 8000;
const THEME = "weft.theme";
const STATES = { ready: "Ready", starting: "Engine is starting", draining: "Draining", away: "Engine is away" };

const byId = (id) => document.getElementById(id);
const write = (id, text) => {
  if (byId(id).textContent !== text) byId(id).textContent = text;
};

const charts = {
  rate: new Chart(byId("rate-chart"), ["generated", "prompt"], { format: count, least: 10 }),
  pages: new Chart(byId("pages-chart"), ["in use"], { format: (share) => (share === null ? "–" : `${Math.round(share * 100)} %`), most: 1 }),
  first: new Chart(byId("first-chart"), ["half within", "99 % within"], { format: duration, least: 1, floor: 0.001 }),
  between: new Chart(byId("between-chart"), ["half within", "99 % within"], { format: duration, least: 0.1, floor: 0.001 }),
};
const fabric = new Fabric(byId("fabric"));

class Status {
  #failures = 0;
  #timer = 0;
  #lookSeconds = 1;

  async ask() {
    clearTimeout(this.#timer);
    try {
      const reply = await fetch("/status.json", { signal: AbortSignal.timeout(PATIENCE_MS) });
      const body = await reply.json();
      if (!reply.ok) throw new Error(body.error.message);
      this.#failures = 0;
      this.#lookSeconds = body.look_seconds;
      this.#draw(body);
    } catch (error) {
      this.#failures += 1;
      this.#fail(error);
    }
    const wait = Math.min(this.#lookSeconds * 1000 * 2 ** Math.max(0, this.#failures - 1), LONGEST_WAIT_MS);
    if (!document.hidden) this.#timer = setTimeout(() => this.ask(), wait);
  }

  pause() {
    clearTimeout(this.#timer);
  }

  #fail(error) {
    document.body.dataset.state = "silent";
    write("state", "No answer");
    const isRefusal = !(error instanceof TypeError) && error.name !== "TimeoutError";
    byId("notice").hidden = !isRefusal;
    write("notice", isRefusal ? `The server says: ${error.message}` : "");
  }

  #draw(body) {
    document.body.dataset.state = body.state;
    byId("notice").hidden = true;
    write("state", body.away_seconds ? `Engine is away for ${span(body.away_seconds)}` : STATES[body.state]);
    write("model", body.model);
    write("uptime", `up ${span(body.up_seconds)}`);
    write("version", `weft ${body.version}`);
    document.title = `${STATES[body.state]} · ${body.model}`;
    this.#drawRates(body);
    this.#drawBatch(body);
    this.#drawPages(body);
    this.#drawLatency("first", body.first_token, body.looks.first_token_p50, body.looks.first_token_p99, body);
    this.#drawLatency("between", body.between_tokens, body.looks.between_tokens_p50, body.looks.between_tokens_p99, body);
    this.#drawDoor(body);
    this.#drawRestarts(body);
  }

  #drawRates({ looks, kept_looks, look_seconds }) {
    write("output-rate", count(looks.output_rate.at(-1) ?? null));
    write("prompt-rate", count(looks.prompt_rate.at(-1) ?? null));
    charts.rate.draw([looks.output_rate, looks.prompt_rate], kept_looks, look_seconds * 1000);
  }

  #drawBatch({ running, batch_limit, waiting }) {
    write("running", count(running));
    write("batch-limit", batch_limit === null ? "" : `of ${batch_limit}`);
    fabric.draw(running, batch_limit);
    const classes = Object.entries(waiting ?? {}).filter(([name, streams]) => name !== "other" || streams);
    const all = classes.reduce((sum, [, streams]) => sum + streams, 0);
    write("waiting", waiting === null ? "–" : count(all));
    bars(byId("queue"), classes, Math.max(batch_limit ?? 1, all));
  }

  #drawPages({ pages, looks, kept_looks, look_seconds }) {
    const share = looks.page_share.at(-1) ?? null;
    write("page-share", share === null ? "–" : String(Math.round(share * 100)));
    charts.pages.draw([looks.page_share], kept_looks, look_seconds * 1000);
    const all = pages ? pages.used + pages.pinned + pages.free : 0;
    for (const kind of ["used", "pinned", "free"]) write(`pages-${kind}`, count(pages?.[kind]));
    for (const kind of ["used", "pinned"]) {
      byId("page-stack").querySelector(`.${kind}`).style.width = all ? `${(100 * pages[kind]) / all}%` : "0";
    }
    byId("page-stack").setAttribute("aria-label", pages ? `${pages.used} held, ${pages.pinned} pinned, ${pages.free} free` : "not known");
  }

  #drawLatency(name, now, half, most, { kept_looks, look_seconds }) {
    write(`${name}-p50`, duration(now?.[0]));
    write(`${name}-half`, duration(now?.[0]));
    write(`${name}-p99`, duration(now?.[1]));
    charts[name].draw([half, most], kept_looks, look_seconds * 1000);
  }

  #drawDoor({ refusals, rung, rung_level }) {
    const reasons = Object.entries(refusals);
    const all = reasons.reduce((sum, [, times]) => sum + times, 0);
    write("refused", count(all));
    bars(byId("refusals"), reasons.slice(0, 6).map(([code, times]) => [words(code), times]), all);
    byId("ladder").dataset.level = rung_level;
    [...byId("ladder").children].forEach((step, index) => {
      step.classList.toggle("reached", index <= rung_level);
      step.classList.toggle("now", step.dataset.rung === rung);
      if (step.dataset.rung === rung) step.setAttribute("aria-current", "step");
      else step.removeAttribute("aria-current");
    });
  }

  #drawRestarts({ restarts, up_seconds }) {
    const list = byId("restarts");
    if (!restarts.length) {
      const none = item(`None in ${span(up_seconds)}`, "");
      none.className = "none";
      list.replaceChildren(none);
      return;
    }
    const shown = restarts.map(({ time, away_seconds }) =>
      item(new Date(time * 1000).toLocaleString(), away_seconds === null ? "" : `away ${duration(away_seconds)}`));
    list.replaceChildren(...shown);
  }
}

function item(text, more) {
  const line = document.createElement("li");
  for (const part of [text, more].filter(Boolean)) line.append(Object.assign(document.createElement("span"), { textContent: part }));
  return line;
}

/** A labelled bar for each pair; those that are there are kept, so that they grow and shrink before the eye. */
function bars(list, pairs, most) {
  while (list.children.length > pairs.length) list.lastChild.remove();
  while (list.children.length < pairs.length) {
    const line = document.createElement("li");
    line.append(document.createElement("span"), document.createElement("meter"), document.createElement("b"));
    list.append(line);
  }
  pairs.forEach(([name, value], index) => {
    const [label, bar, number] = list.children[index].children;
    label.textContent = name;
    bar.max = Math.max(most, 1);
    bar.value = value;
    bar.setAttribute("aria-label", name);
    number.textContent = count(value);
  });
}

function flipTheme() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const next = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  if (next === system) {
    delete root.dataset.theme;
    localStorage.removeItem(THEME);
  } else {
    root.dataset.theme = next;
    localStorage.setItem(THEME, next);
  }
}

byId("theme").addEventListener("click", flipTheme);
const status = new Status();
document.addEventListener("visibilitychange", () => (document.hidden ? status.pause() : status.ask()));
status.ask();
