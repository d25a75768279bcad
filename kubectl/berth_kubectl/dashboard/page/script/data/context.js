// The context of kubectl that the page's server uses.

import { getObject } from "./requests.js";

const UNKNOWN = { context: "", server: "", namespace: "", version: "" };

/** Resolves to the context; to one without names if it cannot be read, which the views' own requests then report. */
export const context = getObject("/api/context").catch(() => UNKNOWN);
