// "2 / 3" between two arrows: the versions that stand at one place of a conversation. Nothing where there is but one.

import { element, iconButton } from "./element.js";

export class VersionSwitch {
  constructor(label) {
    this.before = iconButton("left", "Previous version", { "data-action": "version", "data-step": "-1" });
    this.after = iconButton("right", "Next version", { "data-action": "version", "data-step": "1" });
    this.shown = element("span.version", {});
    this.node = element("div.versions", { role: "group", "aria-label": label }, this.before, this.shown, this.after);
  }

  /** `version` counts from 0. At an end the arrow stays, so that the focus does too, and does nothing. */
  update({ version, versions, busy }) {
    this.node.hidden = versions < 2;
    this.shown.textContent = `${version + 1} / ${versions}`;
    this.before.setAttribute("aria-disabled", String(busy || version === 0));
    this.after.setAttribute("aria-disabled", String(busy || version === versions - 1));
  }
}
