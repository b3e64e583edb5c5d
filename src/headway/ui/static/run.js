// One run, live: numbers, curves, samples, logs, checkpoints, plan and receipt; stop and resume.
import { ask, duration, make, money, number, progressOf, size, stateOf, sure, tell } from "./dom.js";
import { Chart, controls } from "./charts.js";

const RESUMABLE = ["stopped", "preempted", "lost", "budget", "failed"];

export function run(page, id) {
  const settings = { smooth: 0, log: false };
  const tiles = make("div", { className: "tiles" });
  const charts = make("div", { className: "charts" });
  const drawn = new Map();
  const checkpoints = make("tbody");
  const title = make("h1");
  const acts = make("div", { className: "bar" });
  const rest = make("div");
  const logs = logPanel(id);
  let details = null, loadedAt = 0, loading = false;

  page.replaceChildren(title, acts, tiles, make("h2", { textContent: "Curves" }), controls(settings, () => drawn.forEach((chart) => chart.draw())),
    charts, make("h2", { textContent: "Logs" }), logs.node, make("h2", { textContent: "Checkpoints" }),
    make("div", { className: "scroll" }, make("table", {}, make("thead", {}, make("tr", {},
      ...["step", "names", "size", "written in", "held training up", "attempt"].map((text) => make("th", { scope: "col", textContent: text })))), checkpoints)), rest);

  async function first() {
    try {
      details = await ask(`/api/runs/${id}`);
      document.title = `${details.name}: Headway`;
      title.textContent = details.name;
      show(details);
      const samples = await ask(`/api/runs/${id}/samples`);
      rest.replaceChildren(...pictures(id, samples), ...records(details));
      tell("");
      return true;
    } catch (error) {
      tell(error.message, true);
      return false;
    }
  }

  function show(now) {
    const progress = now.progress ?? {};
    const facts = [
      ["state", stateOf(now.state)], ["progress", progressOf(progress)],
      ["step", progress.step === undefined ? "" : `${progress.step} of ${progress.steps ?? "?"}`],
      ["epoch", progress.epochs ? `${Math.min(progress.epoch + 1, progress.epochs)} of ${progress.epochs}` : ""],
      ["left", now.state === "running" ? duration(progress.eta_s) : ""], ["steps a second", number(progress.rate)],
      ["time spent", duration(progress.spent_s)], ["money", money(progress)],
      ...Object.entries(now.last ?? {}).slice(0, 6).map(([name, value]) => [name, number(value)]),
    ];
    tiles.replaceChildren(...facts.filter(([, value]) => value !== "").map(([name, value]) =>
      make("div", { className: "tile" }, make("b", {}, value), make("span", { textContent: name }))));
    buttons(now.state);
    checkpoints.replaceChildren(...(now.checkpoints ?? []).slice(-50).reverse().map((each) => make("tr", {},
      ...[each.step, (each.names ?? []).join(", "), size(each.bytes ?? 0), `${number(each.seconds)} s`, `${number(each.stall_ms)} ms`, each.attempt]
        .map((text) => make("td", { textContent: text ?? "" })))));
    curves(now.metrics ?? []);
  }

  function buttons(state) {
    if (acts.dataset.state === state) return;
    acts.dataset.state = state;
    const wanted = [];
    if (["running", "pending"].includes(state)) wanted.push(button("Stop", "stop", "Stop this run? It writes a checkpoint first and can be resumed."));
    if (RESUMABLE.includes(state)) wanted.push(button("Resume", "resume", "Resume this run? What it runs on may cost money."));
    wanted.push(make("a", { href: `/api/runs/${id}/report`, target: "_blank", rel: "noopener", textContent: "report" }));
    acts.replaceChildren(...wanted);
  }

  function button(text, act, question) {
    const node = make("button", { type: "button", className: "act", textContent: text });
    node.addEventListener("click", async () => {
      if (!(await sure(question))) return;
      node.disabled = true;
      tell(`${text} …`);
      try {
        const answer = await ask(`/api/runs/${id}/${act}`, { method: "POST", headers: { "X-Headway-Ui": "1" } });
        tell(`${details.name} is ${answer.state}`);
      } catch (error) { tell(error.message, true); }
      node.disabled = false;
    });
    return node;
  }

  function curves(names) {
    for (const name of names) {
      if (drawn.has(name)) continue;
      const chart = new Chart(name, [{ id, name: details.name }], settings);
      drawn.set(name, chart);
      charts.append(chart.node);
      chart.load();
    }
  }

  async function refresh() {
    if (loading || Date.now() - loadedAt < 2000) return;
    loading = true;
    await Promise.all([...drawn.values()].filter((chart) => !chart.range).map((chart) => chart.load()));
    await logs.load();
    loading = false;
    loadedAt = Date.now();
  }

  let live = null;
  first().then((there) => {
    if (!there) return;
    live = new EventSource(`/api/runs/${id}/live`);
    live.addEventListener("message", (event) => { show({ ...details, ...JSON.parse(event.data) }); refresh(); });
    live.addEventListener("error", () => tell("the connection broke; trying again …", true));
    live.addEventListener("open", () => tell(""));
  });
  const resized = () => drawn.forEach((chart) => chart.resize());
  addEventListener("resize", resized);
  return () => { live?.close(); removeEventListener("resize", resized); document.title = "Headway"; };
}

function logPanel(id) {
  const search = make("input", { type: "search", placeholder: "search in the logs" });
  search.setAttribute("aria-label", "Search in the logs");
  const rank = make("select");
  rank.setAttribute("aria-label", "Rank");
  rank.append(make("option", { value: "", textContent: "all ranks" }), make("option", { value: "-1", textContent: "supervisor" }),
    ...[...Array(8).keys()].map((n) => make("option", { value: n, textContent: `rank ${n}` })));
  const lines = make("div", { className: "logs", tabIndex: 0 });
  lines.setAttribute("role", "log");
  lines.setAttribute("aria-label", "Log lines");
  async function load() {
    const asked = new URLSearchParams({ q: search.value, last: 500 });
    if (rank.value !== "") asked.set("rank", rank.value);
    const found = await ask(`/api/runs/${id}/logs?${asked}`);
    const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 30;
    lines.replaceChildren(...found.lines.map((line) => make("div", {},
      make("span", { textContent: `${line.time.slice(11, 19)} ${line.rank < 0 ? "s" : line.rank} ` }), line.text)));
    if (atEnd) lines.scrollTop = lines.scrollHeight;
  }
  search.addEventListener("input", load);
  rank.addEventListener("change", load);
  load().catch((error) => tell(error.message, true));
  return { node: make("div", {}, make("div", { className: "bar" }, search, rank), lines), load };
}

function pictures(id, names) {
  if (!names.length) return [];
  return [make("h2", { textContent: "Samples" }), make("div", { className: "pictures" },
    ...names.slice(-24).map((name) => make("img", { src: `/api/runs/${id}/samples/${name}`, alt: name, loading: "lazy", title: name })))];
}

function records(details) {
  const shown = { Plan: details.plan, "Job file": details.job, Receipt: details.receipt, Report: details.report, Events: details.events };
  return [make("h2", { textContent: "Records" }), ...Object.entries(shown).filter(([, value]) => value).map(([name, value]) =>
    make("details", {}, make("summary", { textContent: name }), make("pre", { textContent: JSON.stringify(value, null, 2) })))];
}
