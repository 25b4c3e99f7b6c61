"use strict";
(function () {
  // all of the page can be read without this: it sorts and filters tables, unfolds what a link or a printer asks for
  function compare(a, b, number) {
    if (a === b) return 0;
    if (a === "") return 1; // gaps last, whatever the direction
    if (b === "") return -1;
    return number ? Number(a) - Number(b) : a.localeCompare(b);
  }

  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = Array.from(table.querySelectorAll("thead th"));
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const number = head.classList.contains("number");
        const before = head.getAttribute("aria-sort");
        const down = before === "none" ? number : before === "ascending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const key = (row) => row.cells[column].dataset.sort;
        Array.from(body.rows)
          .sort((a, b) => (key(a) === "" || key(b) === "" ? 1 : down ? -1 : 1) * compare(key(a), key(b), number))
          .forEach((row) => body.appendChild(row));
      });
    });
  });

  const filter = document.querySelector("nav input");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    document.querySelectorAll("table.sortable tbody tr").forEach((row) => {
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
  });

  function unfold() {
    const section = location.hash && document.getElementById(location.hash.slice(1));
    const details = section && (section.closest("details") || section.querySelector(":scope > details"));
    if (details) { details.open = true; section.scrollIntoView(); }
  }
  window.addEventListener("hashchange", unfold);
  document.querySelectorAll("nav a").forEach((link) => link.addEventListener("click", () => setTimeout(unfold)));
  unfold();

  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((details) => { details.open = true; });
  });
})();
