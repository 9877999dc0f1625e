// Sampling settings. A field left empty is not sent, so the model's own default holds.

const KEY = "weft.settings";
const API_KEY = "weft.apiKey";

/** One row per number that a request may carry: its name in the API, its range, and what it does in a few words. */
export const SAMPLING_FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: "any", hint: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: "any", hint: "keep the likeliest tokens up to this mass" },
  { name: "top_k", label: "Top k", min: 0, step: 1, hint: "keep this many tokens; 0 keeps all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "any", hint: "drop tokens below this share of the best" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "the longest answer" },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, hint: "the same seed gives the same answer" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any", hint: "against what was said" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any", hint: "against what was said often" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 2, step: "any", hint: "1 is off; above 1 repeats less" },
];

/** Emits "change". Settings stay in this browser; the API key only in this tab. */
export class Settings extends EventTarget {
  #values = JSON.parse(localStorage.getItem(KEY) ?? "{}");

  get(name) {
    return this.#values[name] ?? null;
  }

  /** `null` gives the field back to the model's default. */
  set(name, value) {
    if (value === null || value === "") delete this.#values[name];
    else this.#values[name] = value;
    this.#save();
  }

  /** Forgets sampling and system prompt; the chosen model stays. */
  reset() {
    const model = this.get("model");
    this.#values = model === null ? {} : { model };
    this.#save();
  }

  /** The sampling parameters that are set, as the API names them. */
  sampling() {
    const set = SAMPLING_FIELDS.filter(({ name }) => this.get(name) !== null);
    return Object.fromEntries(set.map(({ name }) => [name, this.get(name)]));
  }

  get changedCount() {
    return Object.keys(this.sampling()).length + (this.get("system_prompt") ? 1 : 0);
  }

  get apiKey() {
    return sessionStorage.getItem(API_KEY) ?? "";
  }

  set apiKey(key) {
    if (key) sessionStorage.setItem(API_KEY, key);
    else sessionStorage.removeItem(API_KEY);
    this.dispatchEvent(new Event("key"));
  }

  #save() {
    localStorage.setItem(KEY, JSON.stringify(this.#values));
    this.dispatchEvent(new Event("change"));
  }
}
