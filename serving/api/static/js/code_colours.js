// Coloured code as DOM. The highlighter writes spans and escaped text, nothing else; building those by hand cannot make
// anything else either, and takes a tenth of the time that the sanitiser needs while a long block grows.

import highlighter from "../vendor/highlight-11.12.0/highlight.js";
import { element } from "./element.js";

const LIMIT = 40_000; // characters; beyond it colouring a growing block costs more than a frame

const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'" };

/** The nodes of `text` in its language's colours; plain text where the language is unknown or the text is too long. */
export function colouredCode(text, language) {
  const root = document.createDocumentFragment();
  if (!highlighter.getLanguage(language) || text.length > LIMIT) {
    root.append(text);
    return root;
  }
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  const open = [root];
  for (const part of value.split(/(<span class="[^"]*">|<\/span>)/)) {
    if (part === "</span>") {
      open.pop();
    } else if (part.startsWith("<span")) {
      const span = element("span", { class: part.slice('<span class="'.length, -2) });
      open.at(-1).append(span);
      open.push(span);
    } else if (part) {
      open.at(-1).append(part.replace(/&(?:amp|lt|gt|quot|#x27);/g, (entity) => ENTITIES[entity]));
    }
  }
  return root;
}
