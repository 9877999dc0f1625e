// Copying text, also where the page is served over plain http to another machine.

import { element } from "./element.js";

/** True where the text is now on the clipboard. */
export async function copyText(text) {
  if (!navigator.clipboard) return copyBySelection(text);
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (error) {
    if (error.name !== "NotAllowedError") throw error;
    return copyBySelection(text);
  }
}

// navigator.clipboard exists only on https and localhost.
function copyBySelection(text) {
  const focused = document.activeElement;
  const field = element("textarea.visually-hidden", { readonly: true, "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}
