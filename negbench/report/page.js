"use strict";
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function layoutOf(layout, width) {
    const axis = { gridcolor: color("--grid"), linecolor: color("--line"), zerolinecolor: color("--grid"), automargin: true };
    const font = { color: color("--fg"), size: 12, family: "system-ui, -apple-system, Segoe UI, Roboto, Arial, sans-serif" };
    const entries = width < 480 ? 56 : 40;
    return Object.assign({}, layout, {
      title: Object.assign({ font: { size: 14 }, x: 0.02, xanchor: "left", y: 0.98, yanchor: "top", automargin: false }, layout.title),
      xaxis: Object.assign({}, axis, layout.xaxis),
      yaxis: Object.assign({}, axis, layout.yaxis),
      font: font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 52, r: 16, t: 40, b: entries },
      legend: { orientation: "h", x: 0, xanchor: "left", y: -0.2, yanchor: "top", font: { size: 11 }, bgcolor: "rgba(0,0,0,0)" },
      hovermode: "closest", dragmode: false,
      hoverlabel: { namelength: -1 },
    });
  }

  function draw(plot) {
    if (!window.Plotly || plot.offsetParent === null) return;
    const spec = JSON.parse(plot.nextElementSibling.textContent);
    const legend = spec.data.filter((trace) => trace.showlegend !== false && trace.name).length;
    const rows = Math.ceil(legend / Math.max(1, Math.floor(plot.clientWidth / 150)));
    const layout = layoutOf(spec.layout, plot.clientWidth);
    layout.height = spec.layout.height || (window.innerWidth < 480 ? 320 : 350) + 18 * rows;
    const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
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
