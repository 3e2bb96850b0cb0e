// Keeps the parts marked data-live fresh. Without this script a page is as good as when it was loaded.
"use strict";
(() => {
  const refresh = async () => {
    const part = document.querySelector("[data-live]");
    // Somebody who is reading inside it with a keyboard, or has opened a table, is left in peace.
    if (!part || document.hidden || part.contains(document.activeElement) || part.querySelector("details[open]")) return;
    try {
      const response = await fetch(location.pathname + location.search, { credentials: "same-origin" });
      if (!response.ok || response.redirected) return;
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.querySelector("[data-live]");
      if (fresh) part.replaceWith(fresh);
    } catch { /* the service is away: the next try may find it */ }
  };
  setInterval(refresh, 2000);
})();
