// A choice between a few values, as radio buttons in one row.

import { html } from "../html.js";

/** Show the choices; `options` is a list of `[value, text]`. */
export function Choice({ label, name, value, options, change }) {
  return html`<fieldset class="choice choice-${name}">
    <legend>${label}</legend>
    <div class="choice-row">
      ${options.map(
        ([each, text]) => html`<label key=${each} class=${each === value ? "chosen" : ""}>
          <input type="radio" name=${name} value=${each} checked=${each === value} onChange=${() => change(each)} />
          <span>${text}</span>
        </label>`,
      )}
    </div>
  </fieldset>`;
}
