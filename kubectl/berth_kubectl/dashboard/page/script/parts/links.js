// Links within the page.

import { html } from "../html.js";
import { go, nodePath, podPath } from "../router.js";

/** A link that shows another view without loading the page again. */
export function Link({ to, children, ...rest }) {
  const click = (event) => {
    if (event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${to} onClick=${click} ...${rest}>${children}</a>`;
}

/** A link to the view of a pod. */
export function PodLink({ namespace, name, children }) {
  return html`<${Link} to=${podPath(namespace, name)} class="name">${children ?? name}<//>`;
}

/** A link to a node in the Fleet view. */
export function NodeLink({ name }) {
  return html`<${Link} to=${nodePath(name)} class="name">${name}<//>`;
}
