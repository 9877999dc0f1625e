// The page's keys; the message box has its own (Enter, Shift+Enter, arrow up). Listed for people in index.html.

/** Calls `actions.newChat()`, `actions.escape()`, `actions.focusBox()` and `actions.help()`. */
export function listenForShortcuts(actions) {
  addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "o") {
      event.preventDefault();
      actions.newChat();
      return;
    }
    if (document.querySelector("dialog[open]")) return; // a dialog closes itself on Escape
    if (event.key === "Escape") {
      actions.escape();
    } else if (!isTyping(event.target) && !event.ctrlKey && !event.metaKey && !event.altKey) {
      if (event.key === "/") actions.focusBox();
      else if (event.key === "?") actions.help();
      else return;
      event.preventDefault();
    }
  });
}

function isTyping(target) {
  return target.matches("input, textarea, select");
}
