// A metric along an axis with the truth as a line, and all axes at once.

const BY_BLOCKS = "kv/blocks";
const MOST_MARKERS = 60; // on a line

function curveX() {
  const axis = axisNamed(state.curveX);
  if (axis) return { title: axis.name, axis, value: (row) => (axis.numeric ? valueOf(axis, row) : label(valueOf(axis, row))) };
  return { title: titleOf(state.curveX), axis: null, value: (row) => metric(state.curveX)[row] };
}

function drawCurveControls() {
  const change = (key) => (value) => {
    state[key] = value;
    writeHash();
    redraw("curve-chart");
  };
  const across = VARIED.map((axis) => [axis.name, axis.name]);
  for (const name of [BY_BLOCKS, "kv/preemptions", "prefix_cache/hit_rate"]) if (METRICS.has(name)) across.push([name, titleOf(name)]);
  replaceControls("curve-controls",
    select("Across", across, state.curveX, change("curveX")),
    select("Metric", metricOptions(), state.curveY, change("curveY")),
    select("Colour by", [["", "(nothing)"], ...VARIED.map((axis) => [axis.name, axis.name])], state.curveBy, change("curveBy")),
  );
}

// Whether two axes are the same or move together.
function together(one, other) {
  if (!other || one === other) return one === other;
  const pairs = new Set(Array.from(one.codes, (code, row) => `${code} ${other.codes[row]}`));
  return pairs.size === one.values.length && pairs.size === other.values.length;
}

// Points that differ in nothing but what is across are one line.
function curveGroups(x) {
  const axisX = x.axis;
  const others = LEADING.filter((axis) => !together(axis, axisX) && !(state.curveX === BY_BLOCKS && axis.name.includes("gpu_memory_utilization")));
  const groups = new Map();
  for (const row of visible) {
    if (Number.isNaN(metric(state.curveY)[row])) continue;
    const key = others.map((axis) => axis.codes[row]).join(" ");
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return { others, groups: [...groups.values()] };
}

function drawCurve(element) {
  ready(element);
  const x = curveX();
  const y = metric(state.curveY);
  const { others, groups } = curveGroups(x);
  if (!groups.length) return empty(element, "No point that is shown has this metric.");
  const by = axisNamed(state.curveBy);
  const joined = groups.length <= MOST_LINES;
  const dashes = new Map();
  const named = new Set();
  const traces = groups.map((rows) => {
    rows.sort((a, b) => (x.value(a) > x.value(b)) - (x.value(a) < x.value(b)));
    const code = by ? by.codes[rows[0]] : 0;
    const rest = others.filter((axis) => axis !== by).map((axis) => axis.codes[rows[0]]).join(" ");
    if (!dashes.has(rest)) dashes.set(rest, dashes.size);
    const name = joined
      ? others.map((axis) => `${axis.short}=${label(valueOf(axis, rows[0]))}`).join(", ") || "points"
      : by ? `${by.short}=${label(by.values[code])}` : "points";
    const first = !named.has(name);
    named.add(name);
    const look = lineLook(by ? code : dashes.get(rest));
    return {
      type: "scatter", mode: !joined ? "markers" : rows.length > MOST_MARKERS ? "lines" : "lines+markers", name: plain(name, 110), legendgroup: name, showlegend: first,
      x: rows.map(x.value), y: rows.map((row) => y[row]), customdata: rows,
      hoverinfo: "text", hovertext: rows.map((row) => hoverText(row, state.curveY)),
      line: { color: look.color, dash: by ? DASHES[dashes.get(rest) % DASHES.length] : look.dash, width: 2 },
      marker: { color: look.color, size: joined ? 6 : 5, symbol: (by ? code : dashes.get(rest)) % 8 },
    };
  });
  if (truthsOf(visible).length > MOST_TRUTHS && !state.curveY.startsWith("err_pct/")) {
    groups.forEach((rows, i) => traces.push(truthTrace(rows, x, i === 0, traces[i].line.color)));
  }
  const shapes = [];
  const annotations = [];
  for (const line of truthLines()) {
    shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: line.value, y1: line.value, line: { ...truthLook(), width: 2.5 } });
    annotations.push({ xref: "paper", x: 1, xanchor: "right", y: line.value, yanchor: "bottom", text: plain(line.text), showarrow: false });
  }
  if (state.curveX === BY_BLOCKS) {
    for (const truth of truthsOf(visible).slice(0, MOST_TRUTHS).map((key) => DATA.truths[key])) {
      const blocks = truthValue(truth, BY_BLOCKS);
      if (blocks === undefined) continue;
      shapes.push({ type: "line", yref: "paper", y0: 0, y1: 1, x0: blocks, x1: blocks, line: { color: colour("--quiet"), width: 2, dash: "dot" } });
      annotations.push({ yref: "paper", y: 1, yanchor: "bottom", x: blocks, text: `measured: ${blocks}`, showarrow: false });
    }
  }
  const layout = layoutLook(460, {
    shapes, annotations, margin: { l: 60, r: 16, t: 30, b: 40 },
    xaxis: axisLook(plain(x.title), x.axis && !x.axis.numeric ? { type: "category" } : {}),
    yaxis: axisLook(plain(titleOf(state.curveY))),
    showlegend: traces.length > 1,
  });
  plot(element, traces, layout);
  if (!element.dataset.listens) {
    element.dataset.listens = "yes";
    element.on("plotly_click", (event) => choose(event.points[0].customdata));
  }
}

// Where every point has a truth of its own.
function truthTrace(rows, x, first, color) {
  const value = (row) => truthValue(DATA.truths[truthKey(row)], state.curveY);
  const some = rows.filter((row) => value(row) !== undefined);
  return {
    type: "scatter", mode: "markers", name: "truth", legendgroup: "truth", showlegend: first, x: some.map(x.value), y: some.map(value),
    hoverinfo: "text", hovertext: some.map((row) => `truth of ${plain(DATA.points.name[row], 160)}<br>${format(value(row))}`), customdata: some,
    marker: { color, symbol: "line-ew", size: 18, line: { color, width: 4 } },
  };
}

function truthLines() {
  if (state.curveY.startsWith("err_pct/")) return [{ value: 0, text: "truth" }];
  const truths = truthsOf(visible).map((key) => DATA.truths[key]);
  if (truths.length > MOST_TRUTHS) return [];
  return truths
    .map((truth) => ({ value: truthValue(truth, state.curveY), label: truth.label }))
    .filter(({ value }) => value !== undefined)
    .map((one) => ({ value: one.value, text: `truth ${one.label}: ${format(one.value)}` }));
}

function drawParallelControls() {
  const change = (value) => { state.parallel = value; writeHash(); redraw("parallel-chart"); };
  replaceControls("parallel-controls", select("Colour", metricOptions(), state.parallel, change));
}

function hasWebGl() {
  try {
    return Boolean(document.createElement("canvas").getContext("webgl"));
  } catch {
    return false;
  }
}

function drawParallel(element) {
  ready(element);
  if (!hasWebGl()) return empty(element, "This browser has no WebGL, which parallel coordinates are drawn with.");
  const values = metric(state.parallel);
  const rows = visible.filter((row) => !Number.isNaN(values[row]));
  if (!rows.length) return empty(element, "No point that is shown has this metric.");
  const dimensions = VARIED.map((axis) => {
    const used = [...new Set(rows.map((row) => axis.codes[row]))].sort((a, b) => a - b);
    const every = Math.ceil(used.length / 16);
    const texts = toldApart(used.map((code) => label(axis.values[code])), 16);
    return {
      label: plain(axis.short, 30), values: rows.map((row) => axis.codes[row]),
      tickvals: used.filter((_, i) => i % every === 0),
      ticktext: texts.filter((_, i) => i % every === 0), // as text, unlike titles
      range: [Math.min(...used) - 0.2, Math.max(...used) + 0.2],
    };
  });
  const metrics = [...new Set([BY_BLOCKS, ...state.columns, state.parallel])].filter((name) => METRICS.has(name)).slice(0, 7);
  for (const name of metrics) dimensions.push({ label: plain(titleOf(name), 30), values: rows.map((row) => metric(name)[row]) });
  const colours = rows.map((row) => values[row]);
  const trace = {
    type: "parcoords", dimensions, labelangle: -12, labelside: "top",
    line: { color: colours, colorscale: "Cividis", reversescale: isDark(), showscale: true, colorbar: { thickness: 14, title: { text: plain(titleOf(state.parallel)), side: "right" } } },
    labelfont: { color: colour("--ink") }, tickfont: { color: colour("--ink") }, rangefont: { color: colour("--quiet") },
  };
  plot(element, [trace], layoutLook(460, { margin: { l: 120, r: 30, t: 90, b: 30 } }));
}
