// Runs in a page before its own scripts: when what is visible was drawn, and the long tasks.

window.berthProbe = { seen: [], tasks: [], drawn: 0 };

(() => {
  const probe = window.berthProbe;
  const NODES = "[data-node]";

  // Cards are drawn in a canvas, and each drawing begins with an empty one.
  const drawn = new WeakSet();
  const clear = CanvasRenderingContext2D.prototype.clearRect;
  CanvasRenderingContext2D.prototype.clearRect = function (...box) {
    drawn.add(this.canvas);
    probe.drawn = performance.now();
    return clear.apply(this, box);
  };

  /** Return the names of the nodes in the window whose cards are drawn, in their order. */
  const visible = () => {
    const names = [];
    for (const element of document.querySelectorAll(NODES)) {
      const box = element.getBoundingClientRect();
      const isInWindow = box.bottom > 0 && box.top < innerHeight && box.width > 0;
      if (isInWindow && drawn.has(element.querySelector("canvas"))) names.push(element.dataset.node);
    }
    return names.join(" ");
  };

  let isDue = false;
  const look = () => {
    isDue = false;
    const names = visible();
    const last = probe.seen[probe.seen.length - 1];
    if (last && last.names === names) return;
    const entry = { names, at: 0 };
    probe.seen.push(entry);
    // A task after the next frame: then it was painted.
    requestAnimationFrame(() => setTimeout(() => (entry.at = performance.now())));
  };
  const observer = new MutationObserver(() => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(look);
  });
  observer.observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["style", "class", "width"] });
  probe.stop = () => observer.disconnect();

  new PerformanceObserver((list) => {
    for (const task of list.getEntries()) probe.tasks.push({ at: task.startTime, took: task.duration });
  }).observe({ type: "longtask", buffered: true });
})();
