"use strict";
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const coarse = window.matchMedia("(pointer: coarse)");

  function layoutOf(layout, rows) {
    const axis = { gridcolor: color("--grid"), linecolor: color("--line"), zerolinecolor: color("--grid"), automargin: true };
    const font = { color: color("--fg"), size: 12, family: "system-ui, -apple-system, Segoe UI, Roboto, Arial, sans-serif" };
    return Object.assign({}, layout, {
      title: Object.assign({ font: { size: 14 }, x: 0.02, xanchor: "left", y: 0.98, yanchor: "top", automargin: false }, layout.title),
      xaxis: Object.assign({}, axis, layout.xaxis),
      yaxis: Object.assign({}, axis, layout.yaxis),
      font: font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 56, r: 16, t: 40, b: 56 + 20 * rows },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 0, yref: "container", yanchor: "bottom", font: { size: 11 }, bgcolor: "rgba(0,0,0,0)" },
      hovermode: "closest", dragmode: coarse.matches ? false : "zoom",
      hoverlabel: { namelength: -1 },
    });
  }

  // plotly packs the entries of a horizontal legend from the left, row by row
  function legendRows(spec, width) {
    if (!spec.layout.showlegend) return 0;
    const names = spec.data.filter((trace) => trace.showlegend !== false && trace.name).map((trace) => trace.name);
    let rows = 1, used = 0;
    names.forEach((name) => {
      const wide = 46 + 6.2 * name.length;
      if (used > 0 && used + wide > width) { rows += 1; used = 0; }
      used += wide;
    });
    return rows;
  }

  function draw(plot) {
    if (!window.Plotly || plot.offsetParent === null) return;
    const spec = JSON.parse(plot.nextElementSibling.textContent);
    const rows = legendRows(spec, plot.clientWidth - 72);
    const layout = layoutOf(spec.layout, rows);
    layout.width = plot.clientWidth;
    layout.height = spec.layout.height || (window.innerWidth < 480 ? 310 : 340) + 20 * rows;
    const config = { displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
    Plotly.react(plot, spec.data, layout, config).then(() => { plot.dataset.drawn = "yes"; });
  }

  const drawAll = (root) => root.querySelectorAll(".plot").forEach(draw);

  document.querySelectorAll(".choice").forEach((choice) => {
    const select = choice.querySelector("select");
    const show = () => {
      choice.querySelectorAll(":scope > .option").forEach((option) => {
        option.hidden = option.dataset.name !== select.value;
        if (!option.hidden) drawAll(option);
      });
    };
    select.addEventListener("change", show);
    show();
  });

  drawAll(document);
  dark.addEventListener("change", () => drawAll(document));

  // a chart's height depends on how many rows its legend takes, hence on the width
  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone's address bar came or went
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => drawAll(document), 150);
  });

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

  const links = new Map(Array.from(document.querySelectorAll("nav a")).map((link) => [link.hash.slice(1), link]));
  if ("IntersectionObserver" in window) {
    const seen = new IntersectionObserver((entries) => {
      entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
        links.forEach((link) => link.removeAttribute("aria-current"));
        links.get(entry.target.id).setAttribute("aria-current", "true");
      });
    }, { rootMargin: "0px 0px -75% 0px" });
    document.querySelectorAll("main section").forEach((section) => seen.observe(section));
  }
})();
