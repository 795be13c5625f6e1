// Light or dark, before anything is painted: as the browser says, or as was chosen here.
"use strict";

(() => {
  const NAME = "ridealong-theme";
  const root = document.documentElement;

  function wear(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  wear(localStorage.getItem(NAME));

  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = root.dataset.theme ?? "auto";
    choice.addEventListener("change", () => {
      localStorage.setItem(NAME, choice.value);
      wear(choice.value);
      document.dispatchEvent(new Event("theme"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      document.dispatchEvent(new Event("theme"));
    });
  });
})();
