// Chosen points in detail: distributions, series, requests, and where their device time comes from.

const LATENCIES = [["ttft_ms", "TTFT (ms)"], ["tpot_ms", "TPOT (ms)"], ["latency_ms", "latency (ms)"]];
const PANELS = [
  ["running", "running"], ["waiting", "waiting"], ["kv_cache_usage", "KV use"],
  ["prompt_throughput", "prompt tok/s"], ["generation_throughput", "output tok/s"],
];

function detailOf(row) {
  return DATA.details[String(EQUALS[row] >= 0 ? EQUALS[row] : row)];
}

function drawChosenNotes() {
  const without = state.chosen.filter((row) => !detailOf(row));
  let text = state.chosen.length ? "" : "No point is chosen; the boxes in the table choose points. ";
  if (without.length) {
    text += `Without curves, their tables were not kept: ${without.map((row) => DATA.points.name[row]).join("; ")}. `;
    text += "execution.keep_requests: all keeps those of every point. ";
  }
  if (DATA.details_left_out) text += `${DATA.details_left_out} further points have tables that did not fit into this page.`;
  for (const place of document.querySelectorAll(".chosen-note")) place.textContent = text;
}

function withDetails() {
  return state.chosen.filter((row) => detailOf(row));
}

function truthsOfChosen() {
  const keys = new Set(state.chosen.map(truthKey).filter((key) => key));
  if (!state.chosen.length) truthsOf(visible).slice(0, 1).forEach((key) => keys.add(key));
  return [...keys].map((key) => DATA.truths[key]);
}

function lineName(row) {
  return plain(axesOf(row), 110);
}

function axesOf(row) {
  return LEADING.map((axis) => `${axis.short}=${label(valueOf(axis, row))}`).join(", ") || DATA.points.name[row];
}

function drawCdf(element) {
  ready(element);
  const curves = truthsOfChosen().map((truth) => ({ name: `truth ${plain(truth.label)}`, cdf: truth.cdf, look: truthLook() }));
  withDetails().forEach((row, i) => curves.push({ name: lineName(row), cdf: detailOf(row).cdf, look: { ...lineLook(i), width: 2 } }));
  if (!curves.some((curve) => Object.keys(curve.cdf).length)) return empty(element, "Neither truth nor chosen points have requests to show.");
  const traces = [];
  const layout = layoutLook(430, { yaxis: axisLook("share of requests", { range: [0, 1.02] }) });
  LATENCIES.forEach(([metric, title], panel) => {
    const suffix = panel ? panel + 1 : "";
    const ends = [];
    curves.forEach((curve) => {
      if (!curve.cdf[metric]) return;
      const values = unpack(curve.cdf[metric]);
      if (!values.length) return;
      ends.push([values[0], values[Math.floor(values.length / 2)], values[Math.floor((values.length - 1) * 0.995)]]);
      traces.push({
        type: "scatter", mode: "lines", name: curve.name, legendgroup: curve.name, showlegend: panel === 0,
        x: values, y: Float64Array.from(values, (_, i) => (i + 1) / values.length),
        xaxis: `x${suffix}`, yaxis: "y", line: { ...curve.look, shape: "hv" },
        hovertemplate: `%{y:.1%} up to %{x:.5~g} ms`,
      });
    });
    const wide = 1 / LATENCIES.length;
    layout[`xaxis${suffix}`] = axisLook(title, { domain: [panel * wide + (panel ? 0.025 : 0), (panel + 1) * wide - 0.01], ...spread(ends) });
  });
  plot(element, traces, layout);
}

// To the 99.5th percentile of the largest; logarithmic over more than two decades.
function spread(ends) {
  if (!ends.length) return {};
  const low = Math.min(...ends.map((end) => end[0]));
  const middle = Math.max(...ends.map((end) => end[1]));
  const high = Math.max(...ends.map((end) => end[2])) || 1;
  if (low > 0 && high > 100 * low && middle > 3 * low) return { type: "log", range: [Math.log10(low), Math.log10(high * 1.05)] };
  return { range: [Math.min(low, 0), high * 1.02] };
}

function drawTime(element) {
  ready(element);
  const curves = truthsOfChosen().filter((truth) => truth.series)
    .map((truth) => ({ name: `truth ${plain(truth.label)}`, series: truth.series, look: truthLook() }));
  withDetails().forEach((row, i) => curves.push({ name: lineName(row), series: detailOf(row).series, look: { ...lineLook(i), width: 1.8 } }));
  const panels = PANELS.filter(([key]) => curves.some((curve) => curve.series[key]));
  if (!panels.length) return empty(element, "Neither truth nor chosen points have a series to show.");
  const every = Math.max(...curves.map((curve) => curve.series.every));
  show("time-note", every > 1 ? `Long runs are thinned: every ${every}th second at most.` : "");
  const traces = [];
  const layout = layoutLook(120 + 145 * panels.length, { legend: { orientation: "h", y: -0.08, yanchor: "top", x: 0 } });
  const high = 1 / panels.length;
  panels.forEach(([key, title], panel) => {
    const suffix = panel ? panel + 1 : "";
    const top = 1 - panel * high;
    layout[`yaxis${suffix}`] = axisLook(title, { domain: [top - high + 0.025, top], rangemode: "tozero", ...(key === "kv_cache_usage" ? { tickformat: ".0%" } : {}) });
    curves.forEach((curve) => {
      if (!curve.series[key]) return;
      traces.push({
        type: "scatter", mode: "lines", name: curve.name, legendgroup: curve.name, showlegend: panel === 0,
        x: unpack(curve.series.t_s), y: unpack(curve.series[key]), xaxis: "x", yaxis: `y${suffix}`, line: curve.look,
      });
    });
  });
  layout.xaxis = axisLook("time (s)", { anchor: `y${panels.length > 1 ? panels.length : ""}`, rangemode: "tozero" });
  plot(element, traces, layout);
}

const SYMBOLS = ["circle", "square", "diamond", "cross", "x", "triangle-up"];

function drawErrorsControls() {
  replaceControls("errors-controls", select("Metric", LATENCIES, state.errors, (value) => {
    state.errors = value;
    writeHash();
    redraw("errors-chart");
  }));
}

function drawErrors(element) {
  ready(element);
  const traces = [];
  const notes = [];
  withDetails().forEach((row, i) => {
    const truth = DATA.truths[truthKey(row)];
    const ours = detailOf(row).requests;
    if (!truth || !truth.requests || !ours) return;
    const measured = unpack(truth.requests[state.errors]);
    const simulated = unpack(ours[state.errors]);
    const [prompt, output] = [unpack(truth.requests.prompt), unpack(truth.requests.output)];
    const [x, y, text] = [[], [], []];
    measured.forEach((value, r) => {
      if (!(value > 0) || Number.isNaN(simulated[r])) return;
      x.push(value);
      y.push(((simulated[r] - value) / value) * 100);
      text.push(`${plain(truth.requests.id[r])}: ${prompt[r]} + ${output[r]} tokens<br>measured ${format(value)} ms, simulated ${format(simulated[r])} ms`);
    });
    const look = lineLook(i);
    const sizes = y.map(Math.abs).sort((a, b) => a - b);
    if (sizes.length) notes.push(`${axesOf(row)}: half of the requests within ${percent(sizes[Math.floor(sizes.length / 2)]).replace("+", "")}`);
    if (truth.requests.of > measured.length) notes.push(`${measured.length} of ${truth.requests.of} requests are shown`);
    traces.push({
      type: "scatter", mode: "markers", name: lineName(row), x, y, hoverinfo: "text", hovertext: text,
      marker: { color: look.color, size: 7, opacity: 0.75, symbol: `${SYMBOLS[i % SYMBOLS.length]}-open` },
    });
  });
  show("errors-note", [...new Set(notes)].join("; "));
  if (!traces.length) return empty(element, "Needs a truth with requests and a chosen point whose tables were kept.");
  const title = LATENCIES.find(([key]) => key === state.errors)[1];
  plot(element, traces, layoutLook(420, {
    xaxis: axisLook(`measured ${title}`, { type: "log" }),
    yaxis: axisLook("simulated − measured (%)", { zerolinewidth: 2.5, zerolinecolor: colour("--ink") }),
    showlegend: traces.length > 1,
  }));
}

const SHARES = [...METRICS.keys()].filter((name) => name.startsWith("time_share/"));

function drawShare(element) {
  ready(element);
  const rows = state.chosen.filter((row) => SHARES.some((name) => !Number.isNaN(metric(name)[row])));
  if (!rows.length) return empty(element, "No chosen point has shares of its device time.");
  const traces = SHARES.map((name, i) => ({
    type: "bar", orientation: "h", name: plain(name.slice("time_share/".length)),
    y: rows.map((row, place) => `${place + 1}. ${plain(lineName(row), 50)}`), x: rows.map((row) => metric(name)[row]),
    marker: { color: lineLook(i).color, pattern: { shape: ["", "/", ".", "x", "-", "\\"][i % 6], fillmode: "overlay", fgopacity: 0.35 } },
    hovertemplate: `%{x:.1%}`,
  }));
  plot(element, traces, layoutLook(150 + 34 * rows.length, {
    barmode: "stack", legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, xaxis: axisLook("share of device time", { tickformat: ".0%" }), yaxis: axisLook("", { autorange: "reversed" }),
  }));
}
