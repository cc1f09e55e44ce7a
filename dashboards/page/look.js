// Colours and layouts of charts. Okabe and Ito's colours are told apart with any kind of colour
// blindness; line styles differ too.

const COLOURS = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#A87900"],
  dark: ["#56B4E9", "#E69F00", "#2BC79A", "#E4A3C9", "#4C9BE8", "#F0E442"],
};
const DASHES = ["solid", "dash", "dot", "dashdot"];
const MOST_LINES = 24;
const PALE_IS_ZERO = [
  [0, "#7f3b08"], [0.1, "#b35806"], [0.2, "#e08214"], [0.3, "#fdb863"], [0.4, "#fee0b6"], [0.5, "#f7f7f7"],
  [0.6, "#d8daeb"], [0.7, "#b2abd2"], [0.8, "#8073ac"], [0.9, "#542788"], [1, "#2d004b"],
];
const CONFIG = {
  responsive: true,
  displaylogo: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

const SLOW_MS = 250; // what takes long to draw waits until the reader pauses

let printing = false;

function isDark() {
  if (printing) return false;
  if (state.theme) return state.theme === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  show("theme", isDark() ? "Light" : "Dark");
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function lineLook(i) {
  const colours = COLOURS[isDark() ? "dark" : "light"];
  return { color: colours[i % colours.length], dash: DASHES[Math.floor(i / colours.length) % DASHES.length] };
}

function truthLook() {
  return { color: colour("--ink"), width: 3.5 };
}

function axisLook(title, more) {
  return {
    title: { text: title, standoff: 8 },
    automargin: true,
    gridcolor: colour("--grid"),
    linecolor: colour("--line"),
    zerolinecolor: colour("--line"),
    ...more,
  };
}

function layoutLook(height, more) {
  return {
    height,
    margin: { l: 60, r: 16, t: 24, b: 44 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), size: 12.5, family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { namelength: -1, align: "left" },
    legend: { orientation: "h", y: -0.16, yanchor: "top", x: 0 },
    ...more,
  };
}

// Charts are drawn when they come into view, and again only when something they show has changed.
const charts = new Map();
const inView = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) inView.add(entry.target.id);
    else inView.delete(entry.target.id);
  }
  drawDue();
}, { rootMargin: "300px" });

function addChart(id, draw, slow = false) {
  charts.set(id, { draw, due: true, slow });
  watcher.observe(byId(id));
}

function redraw(...ids) {
  for (const [id, chart] of charts) {
    if (!ids.length || ids.includes(id)) chart.due = true;
  }
  drawDue();
}

function drawDue(all = false) {
  for (const [id, chart] of charts) {
    const hidden = byId(id).closest("section").hidden;
    if (!chart.due || hidden || !(all || inView.has(id))) continue;
    chart.due = false;
    clearTimeout(chart.later);
    if (chart.slow && !all) chart.later = setTimeout(() => drawChart(id, chart), SLOW_MS);
    else drawChart(id, chart);
  }
}

// A chart that fails is told, and does not keep the others from being drawn.
function drawChart(id, chart) {
  try {
    chart.draw(byId(id));
  } catch (error) {
    empty(byId(id), "This chart cannot be drawn.");
    reportError(error);
  }
}

function plot(element, traces, layout) {
  element.dataset.drawn = String(Number(element.dataset.drawn || 0) + 1);
  return Plotly.react(element, traces, layout, CONFIG);
}

function empty(element, text) {
  Plotly.purge(element);
  element.replaceChildren(make("p", { class: "quiet" }, text));
  element.dataset.drawn = "empty";
}

function ready(element) {
  if (element.dataset.drawn === "empty") element.replaceChildren();
}

function select(title, options, value, change) {
  const chosen = make("select", { onchange: (event) => change(event.target.value) });
  for (const [key, text] of options) {
    chosen.append(make("option", { value: key, selected: String(key) === String(value) }, text));
  }
  return make("label", {}, title, chosen);
}
