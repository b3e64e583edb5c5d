// One run, live: numbers, curves, samples, logs, checkpoints, plan and receipt; stop and resume.
import { ask, duration, inOrder, make, money, number, progressOf, size, stateOf, sure, tell, wide } from "./dom.js";
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
  const logs = logPanel(id), samples = samplePanel(id);
  const checked = new Map(); // step -> what verifying it found
  let details = null, loadedAt = 0, loading = false;

  page.replaceChildren(title, acts, tiles, make("h2", { textContent: "Curves" }), controls(settings, drawn),
    charts, make("h2", { textContent: "Logs" }), logs.node, make("h2", { textContent: "Checkpoints" }),
    wide("Checkpoints", make("table", {}, make("thead", {}, make("tr", {},
      ...["step", "names", "score", "size", "written in", "training paused", "attempt", "integrity"].map((text) => make("th", { scope: "col", textContent: text })))), checkpoints)), rest);

  async function first() {
    try {
      details = await ask(`/api/runs/${id}`);
      document.title = `${details.name}: Headway`;
      title.textContent = details.name;
      show(details);
      logs.ranks(details.ranks ?? 1);
      await samples.load();
      rest.replaceChildren(samples.node, ...records(details));
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
      ["time left", now.state === "running" ? duration(progress.eta_s) : ""], ["steps/s", number(progress.rate)],
      ["time spent", spentTime(now.spent)], ["cost", money(now.spent)], ["best", number(now.best)],
      ...Object.entries(now.last ?? {}).slice(0, 6).map(([name, value]) => [name, number(value)]),
    ];
    tiles.replaceChildren(...facts.filter(([, value]) => value !== "").map(([name, value]) =>
      make("div", { className: "tile" }, make("b", {}, value), make("span", { textContent: name }))));
    buttons(now.state);
    saved(now.checkpoints ?? []);
    curves(now.metrics ?? []);
  }

  // Rows are made again only when they say something else: a button that is replaced loses its focus.
  function saved(rows) {
    const text = JSON.stringify(rows);
    if (checkpoints.dataset.shown === text) return;
    checkpoints.dataset.shown = text;
    checkpoints.replaceChildren(...rows.slice(-50).reverse().map((each) => make("tr", {},
      ...[each.step, (each.names ?? []).join(", "), number(each.score), size(each.bytes ?? 0), `${number(each.seconds)} s`, `${number(each.stall_ms)} ms`, each.attempt]
        .map((told) => make("td", { textContent: told ?? "" })), make("td", {}, verification(each)))));
  }

  function verification(each) {
    if (!each.kept) return "removed";
    const cell = make("span"), known = checked.get(each.step);
    const say = (found) => {
      cell.className = found.wrong.length ? "failed" : "finished";
      cell.textContent = found.wrong.length ? found.wrong.join("; ") : `intact, read in ${number(found.seconds)} s`;
    };
    if (known) { say(known); return cell; }
    const button = make("button", { type: "button", textContent: "Verify" });
    button.setAttribute("aria-label", `Verify the checkpoint of step ${each.step}`);
    button.addEventListener("click", async () => {
      cell.textContent = "reading …";
      try {
        checked.set(each.step, await ask(`/api/runs/${id}/checkpoints/${each.step}/verify`));
        say(checked.get(each.step));
        tell(`checkpoint ${each.step}: ${cell.textContent}`);
      } catch (error) { tell(error.message, true); cell.replaceChildren(button); }
    });
    cell.append(button);
    return cell;
  }

  function buttons(state) {
    const reported = Boolean(details.report);
    if (acts.dataset.state === `${state} ${reported}`) return;
    acts.dataset.state = `${state} ${reported}`;
    const wanted = [];
    if (["running", "pending"].includes(state)) wanted.push(button("Stop", "stop", "Stop this run? It can be resumed."));
    if (RESUMABLE.includes(state)) wanted.push(button("Resume", "resume", "Resume this run? This may cost money."));
    if (reported) wanted.push(make("a", { href: `/api/runs/${id}/report`, target: "_blank", rel: "noopener", textContent: "report" }));
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
    for (const name of inOrder(names)) {
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
    await samples.load();
    loading = false;
    loadedAt = Date.now();
  }

  let live = null;
  first().then((there) => {
    if (!there) return;
    live = new EventSource(`/api/runs/${id}/live`);
    live.addEventListener("message", (event) => { show({ ...details, ...JSON.parse(event.data) }); refresh(); });
    live.addEventListener("error", () => tell("connection lost, reconnecting …", true));
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
  rank.append(make("option", { value: "", textContent: "all ranks" }), make("option", { value: "-1", textContent: "supervisor" }));
  const ranks = (count) => rank.append(...[...Array(count).keys()].map((n) => make("option", { value: n, textContent: `rank ${n}` })));
  const lines = make("div", { className: "logs", tabIndex: 0 });
  lines.setAttribute("role", "log");
  lines.setAttribute("aria-label", "Log lines");
  async function load() {
    const asked = new URLSearchParams({ q: search.value, last: 500 });
    if (rank.value !== "") asked.set("rank", rank.value);
    let found;
    try { found = await ask(`/api/runs/${id}/logs?${asked}`); }
    catch (error) { tell(error.message, true); return; }
    const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 30;
    lines.replaceChildren(...found.lines.map((line) => make("div", {},
      make("span", { textContent: `${line.time.slice(11, 19)} ${line.rank < 0 ? "s" : line.rank} ` }), line.text)));
    if (atEnd) lines.scrollTop = lines.scrollHeight;
  }
  search.addEventListener("input", load);
  rank.addEventListener("change", load);
  load();
  return { node: make("div", {}, make("div", { className: "bar" }, search, rank), lines), load, ranks };
}

const spentTime = (spent) =>
  !spent?.seconds ? "" : duration(spent.seconds) + (spent.budget_s ? ` of ${duration(spent.budget_s)}` : "");

// What the run put aside to be looked at, by step: a slider from the first to the last.
function samplePanel(id) {
  const node = make("div", { hidden: true });
  const slider = make("input", { type: "range", min: 0, value: 0, id: "sample-step" });
  const label = make("output", { htmlFor: "sample-step" });
  const shown = make("div", { className: "pictures" });
  let steps = [], known = "";
  node.append(make("h2", { textContent: "Samples" }), make("div", { className: "bar" }, make("label", { htmlFor: "sample-step" }, "step "), slider, label), shown);
  const draw = () => {
    const [step, names] = steps[Number(slider.value)] ?? [0, []];
    label.textContent = `${step} (${Number(slider.value) + 1} of ${steps.length})`;
    shown.replaceChildren(...names.map((name) => sample(id, name)));
  };
  slider.addEventListener("input", draw);
  async function load() {
    let names;
    try { names = await ask(`/api/runs/${id}/samples`); } catch (error) { tell(error.message, true); return; }
    if (names.join() === known) return;
    const atEnd = Number(slider.value) >= steps.length - 1;
    known = names.join();
    const groups = new Map();
    for (const name of names) {
      const step = Number(/^\d+/.exec(name)?.[0] ?? 0);
      groups.set(step, [...(groups.get(step) ?? []), name]);
    }
    steps = [...groups].sort((a, b) => a[0] - b[0]);
    node.hidden = !steps.length;
    slider.max = Math.max(0, steps.length - 1);
    if (atEnd) slider.value = slider.max;
    draw();
  }
  return { node, load };
}

function sample(id, name) {
  const url = `/api/runs/${id}/samples/${name.split("/").map(encodeURIComponent).join("/")}`;
  const title = name.replace(/^\d+-/, "");
  if (/\.(png|jpe?g|webp|gif)$/i.test(name)) {
    return make("figure", {}, make("img", { src: url, alt: title, loading: "lazy" }), make("figcaption", { textContent: title }));
  }
  const text = make("pre", { tabIndex: 0 });
  fetch(url).then((answer) => answer.text()).then((body) => { text.textContent = body; }).catch((error) => tell(error.message, true));
  return make("figure", {}, text, make("figcaption", { textContent: title }));
}

function records(details) {
  const shown = { Plan: details.plan, "Job file": details.job, Receipt: details.receipt, Report: details.report, Events: details.events };
  return [make("h2", { textContent: "Records" }), ...Object.entries(shown).filter(([, value]) => value).map(([name, value]) =>
    make("details", {}, make("summary", { textContent: name }), make("pre", { tabIndex: 0, textContent: JSON.stringify(value, null, 2) })))];
}
