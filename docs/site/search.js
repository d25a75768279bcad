// What the site adds to its search, so that a pod's message finds its reason: `make docs` copies it with the pages.
(() => {
  "use strict";

  // The search finds sections that have all words, but counts, patterns and names differ from message to message.
  // If a message has several reasons, the first is searched. The word "reasons" puts the page of that title first.
  const reason = (message) =>
    message
      .replace(/^.*nodes? (?:are|is) available:/s, "")
      .replace(/ \(.*|, \d+ .*|[.;…](?:\s.*)?$/s, "")
      .replace(/\*\S+|\b(namespace|claim|gang|volume|pod) \S*[-/\d]\S*/g, "$1")
      .replace(/(?<![\w-])\d\S*/g, "")
      .replace(/\s+/g, " ")
      .trim()
      .replace(/^(?=node\(s\)|Insufficient|Too many)/, "reasons: ");

  document.addEventListener(
    "paste",
    (event) => {
      const [input] = event.composedPath();
      const text = event.clipboardData?.getData("text") ?? "";
      if (!(input instanceof HTMLInputElement) || text.split(" ").length < 4) return;
      event.preventDefault();
      input.setRangeText(reason(text), input.selectionStart, input.selectionEnd, "end");
      input.dispatchEvent(new InputEvent("input", { bubbles: true, composed: true }));
    },
    { capture: true },
  );

  // A result is a section; if a row of its tables begins with what was searched, show the row.
  window.addEventListener("load", () => {
    const words = new URLSearchParams(location.search).get("h")?.replace("reasons: ", "").match(/\S+/g) ?? [];
    const pattern = new RegExp(words.map((word) => word.replace(/\W/g, "\\$&")).join(".*"), "is");
    const rows = [...document.querySelectorAll("article tbody tr")];
    const row = words.length > 1 && rows.find(({ cells: [first] }) => pattern.test(first.textContent));
    if (row) requestAnimationFrame(() => row.scrollIntoView({ block: "center" }));
  });
})();
