// Before the page is drawn: the chosen colours, or those of the system.
"use strict";
(() => {
  try {
    const theme = localStorage.getItem("headrace-theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch { /* no storage: the system decides */ }
})();
