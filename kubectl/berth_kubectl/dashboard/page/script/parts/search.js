// The search field; `/` moves the focus to it.

import { html, useEffect, useRef } from "../html.js";
import { Glyph } from "../drawing/glyphs.js";
import { useKeys } from "./hooks.js";

/** Show the field; `change` is called with the text. */
export function Search({ value, label, placeholder, change }) {
  const field = useRef(null);
  useKeys({ "/": () => field.current?.focus() });
  useEffect(() => {
    if (field.current && field.current.value !== value) field.current.value = value;
  }, [value]);
  const keys = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    if (field.current.value) change("");
    else field.current.blur();
  };
  return html`<div class="search" role="search">
    <${Glyph} name="search" size="14" />
    <input
      ref=${field}
      type="search"
      aria-label=${label}
      aria-keyshortcuts="/"
      placeholder=${placeholder}
      autocomplete="off"
      spellcheck="false"
      onInput=${(event) => change(event.target.value)}
      onKeyDown=${keys}
    />
    <kbd aria-hidden="true">/</kbd>
  </div>`;
}
