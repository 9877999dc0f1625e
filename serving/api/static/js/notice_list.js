// The notices of one answer on screen. Those of the memory lead to it.

import { element, icon } from "./element.js";

const ICONS = {
  left_out: "scissors",
  memory_used: "memory",
  memory_unavailable: "memory",
  moderation: "shield",
  semantic_cache: "again",
};

export class NoticeList {
  #shown = "";

  constructor() {
    this.node = element("ul.notices", { "aria-label": "Notices" });
  }

  update(notices) {
    // Earlier releases kept sentences alone.
    const all = notices.map((notice) => (typeof notice === "string" ? { kind: "", text: notice } : notice));
    const shown = JSON.stringify(all);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.node.replaceChildren(...all.map(({ kind, text }) => element("li.notice", {},
      icon(Object.hasOwn(ICONS, kind) ? ICONS[kind] : "info"),
      element("span", {}, text),
      kind === "memory_used" && element("button.link", { type: "button", "data-action": "memory" }, "See the memory"))));
  }
}
