// Saving as a file.

import { element } from "./element.js";

export function downloadJson(name, value) {
  downloadBlob(`${fileName(name)}.json`, new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
}

export function downloadBlob(name, blob) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  // The download has its own hold on the data once the click is handled.
  setTimeout(() => URL.revokeObjectURL(url), 0);
}

function fileName(title) {
  return title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").toLowerCase() || "conversation";
}
