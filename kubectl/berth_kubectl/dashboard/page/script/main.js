// Starts the page.

import { App } from "./app.js";
import { html, render } from "./html.js";

render(html`<${App} />`, document.getElementById("app"));
