// Curves of one or several runs: zoom by dragging, smoothing, logarithmic scale. The server thins what is drawn.
import { ask, make, number, tell } from "./dom.js";

const COLOURS = ["#2f6fd6", "#d95f02", "#1b9e77", "#c2318a", "#7570b3", "#a6761d", "#3a8fb7", "#e0457b"];
const ink = () => getComputedStyle(document.body).getPropertyValue("--soft");

export class Chart {
  constructor(metric, runs, settings) {
    this.metric = metric;
    this.runs = runs; // [{id, name}]
    this.settings = settings; // {smooth, log}
    this.range = null;
    this.holder = make("div");
    this.node = make("section", { className: "chart" }, make("h3", { textContent: metric }), this.holder);
    this.node.setAttribute("aria-label", `curve of ${metric}`);
  }

  async load() {
    const asked = new URLSearchParams({ name: this.metric, points: 800 });
    if (this.range) { asked.set("low", this.range[0]); asked.set("high", this.range[1]); }
    try {
      this.curves = await Promise.all(this.runs.map(async (run) =>
        (await ask(`/api/runs/${run.id}/metrics?${asked}`))[this.metric]));
      this.draw();
    } catch (error) { tell(error.message, true); }
  }

  draw() {
    if (!this.curves?.some((curve) => curve.steps.length)) return;
    const steps = [...new Set(this.curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
    const place = new Map(steps.map((step, index) => [step, index]));
    const rows = this.curves.map((curve) => {
      const row = new Array(steps.length).fill(null);
      smoothed(curve.values, this.settings.smooth).forEach((value, index) => { row[place.get(curve.steps[index])] = value; });
      return row;
    });
    const data = [steps, ...rows];
    if (this.plot && this.plot.series.length === data.length && this.log === this.settings.log) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.log = this.settings.log;
    this.plot = new uPlot(this.options(), data, this.holder);
  }

  options() {
    const axis = { stroke: ink, grid: { stroke: () => getComputedStyle(document.body).getPropertyValue("--line") } };
    return {
      width: Math.max(240, this.node.clientWidth - 20 || 360),
      height: 220,
      scales: { x: { time: false }, y: { distr: this.settings.log ? 3 : 1 } },
      axes: [axis, { ...axis, size: 72, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
      series: [{ label: "step" }, ...this.runs.map((run, index) => (
        { label: run.name, stroke: COLOURS[index % COLOURS.length], width: 1.5, spanGaps: true, points: { show: undefined } }))],
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false } },
      hooks: {
        setSelect: [(plot) => {
          if (plot.select.width < 5) return;
          this.zoom([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")]);
        }],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => this.zoom(null))],
      },
    };
  }

  zoom(range) {
    this.range = range;
    return this.load();
  }

  resize() {
    this.plot?.setSize({ width: Math.max(240, this.node.clientWidth - 20), height: 220 });
  }
}

export function smoothed(values, amount) {
  if (!amount) return values;
  let total = 0, weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = amount * total + value;
    weight = amount * weight + 1;
    return total / weight;
  });
}

// `drawn` holds the charts that these controls are for, now and later.
export function controls(settings, drawn) {
  const all = (act) => drawn.forEach(act);
  const smooth = make("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: settings.smooth, id: "smooth" });
  smooth.addEventListener("input", () => { settings.smooth = Number(smooth.value); all((chart) => chart.draw()); });
  const log = make("input", { type: "checkbox", checked: settings.log, id: "log" });
  log.addEventListener("change", () => { settings.log = log.checked; all((chart) => chart.draw()); });
  const [low, high] = ["from step", "to step"].map((name) => {
    const node = make("input", { type: "number", min: 0, className: "step" });
    node.setAttribute("aria-label", name);
    return node;
  });
  const zoom = () => {
    const range = low.value === "" && high.value === "" ? null : [Number(low.value || 0), Number(high.value || 1e15)];
    all((chart) => chart.zoom(range));
  };
  [low, high].forEach((node) => node.addEventListener("change", zoom));
  const reset = make("button", { type: "button", textContent: "All steps" });
  reset.addEventListener("click", () => { low.value = high.value = ""; zoom(); });
  return make("div", { className: "bar" }, make("label", {}, "smoothing ", smooth), make("label", {}, log, " logarithmic"),
    make("span", {}, "steps ", low, " to ", high), reset, make("span", { className: "soft", textContent: "drag to zoom, double-click to see all" }));
}
