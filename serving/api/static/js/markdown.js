// Markdown to DOM, safely: markdown-it escapes all HTML in the source, DOMPurify checks what it wrote, and the page's
// policy would block what both let through. Nothing is loaded from elsewhere: a remote image becomes a link.

import MarkdownIt from "../vendor/markdown-it-15.0.3/markdown-it.js";
import DOMPurify from "../vendor/dompurify-3.4.18/dompurify.js";
import { colouredCode } from "./code_colours.js";
import { element, icon } from "./element.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "span", "em",
    "strong", "s", "a", "img", "table", "thead", "tbody", "tr", "th", "td",
  ],
  ALLOWED_ATTR: ["href", "title", "class", "start", "src", "alt", "target", "rel"],
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const OF_PROGRAMS = /^(?:sandbox:)?\/mnt\/data\//; // how models link to what their programs wrote

const markdown = new MarkdownIt({ html: false, linkify: true });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });

markdown.renderer.rules.link_open = (tokens, index, options, _env, renderer) => {
  const target = tokens[index].attrGet("href");
  if (OF_PROGRAMS.test(target)) {
    tokens[index].attrs = [["class", "written-file"], ["title", target.replace(OF_PROGRAMS, "")]];
    return renderer.renderToken(tokens, index, options);
  }
  tokens[index].attrSet("target", "_blank");
  tokens[index].attrSet("rel", "noopener noreferrer nofollow");
  return renderer.renderToken(tokens, index, options);
};

const inlineImage = markdown.renderer.rules.image;
markdown.renderer.rules.image = (tokens, index, options, env, renderer) => {
  const source = tokens[index].attrGet("src");
  if (source.startsWith("data:")) return inlineImage(tokens, index, options, env, renderer);
  const { escapeHtml } = markdown.utils;
  const label = escapeHtml(tokens[index].content || "image");
  return `<a class="image-link" href="${escapeHtml(source)}" target="_blank" rel="noopener noreferrer nofollow">${label}</a>`;
};

// The built-in rule aligns a table's cells by a style attribute, which the policy forbids; a class does the same.
for (const cell of ["th_open", "td_open"]) {
  markdown.renderer.rules[cell] = (tokens, index, options, _env, renderer) => {
    const alignment = /text-align:(\w+)/.exec(tokens[index].attrGet("style") ?? "")?.[1];
    tokens[index].attrs = alignment ? [["class", `align-${alignment}`]] : null;
    return renderer.renderToken(tokens, index, options);
  };
}

/** One unsanitised HTML string per top-level block: cheap, and equal for a block that did not change. */
export function blocksOf(text) {
  const env = {};
  const blocks = [];
  let start = 0;
  const tokens = markdown.parse(text, env);
  tokens.forEach((token, index) => {
    if (token.level !== 0 || token.nesting > 0) return;
    blocks.push(markdown.renderer.render(tokens.slice(start, index + 1), markdown.options, env));
    start = index + 1;
  });
  return blocks;
}

/** The sanitised DOM of one block, its code coloured, with copy buttons. */
export function fragmentOf(block) {
  const fragment = DOMPurify.sanitize(block, ALLOWED);
  for (const code of fragment.querySelectorAll("pre > code")) decorateCode(code);
  for (const link of fragment.querySelectorAll("a.written-file")) link.replaceWith(saveButton(link));
  for (const table of fragment.querySelectorAll("table")) {
    const scroller = element("div.table-scroll", { tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(scroller);
    scroller.append(table);
  }
  return fragment;
}

/** No link would carry the page's key. */
function saveButton(link) {
  return element("button.written-file", { type: "button", "data-action": "save", "data-file": link.title }, ...link.childNodes);
}

function decorateCode(code) {
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  code.replaceChildren(colouredCode(code.textContent, language));
  const pre = code.parentElement;
  pre.tabIndex = 0; // so that the keyboard can scroll a long line
  const block = element("div.code-block");
  pre.replaceWith(block);
  block.append(
    element("div.code-head", {},
      element("span", {}, language || "text"),
      element("button.copy-code", { type: "button", "aria-label": "Copy code" }, icon("copy"), element("span", {}, "Copy")),
    ),
    pre,
  );
}
