// Sets the theme before the first paint; a classic script, because modules run after it.
(() => {
  let chosen = "";
  try {
    chosen = localStorage.getItem("berth-theme") || "";
  } catch {
    chosen = ""; // storage is disabled: the system's theme
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
