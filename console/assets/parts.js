// Components that several pages share.

import { get, newKey, Problem } from "./api.js";
import { el, fill, say, svg } from "./dom.js";
import { moment, words } from "./format.js";

const TONES = {
  observing: "calm", checking: "busy", proposed: "ask", draining: "busy", launching: "busy", warming: "busy",
  canary: "busy", trial: "busy", saving: "busy", replacing: "busy", promoting: "busy", rolling_back: "warn", cooldown: "calm", restoring: "warn", halted: "bad", traffic_lost: "bad",
  open: "ask", scheduled: "good", approved: "good", denied: "calm", expired: "calm", superseded: "calm", withdrawn: "calm", refused: "warn",
  running: "busy", promoted: "good", rolled_back: "warn", failed: "bad", undecided: "calm", aborted: "calm", no_gain: "calm",
};

export function pill(name, text = words(name)) {
  return el("span", { class: `pill ${TONES[name] || "calm"}` }, text);
}

export function side(color) {
  return el("span", { class: `side ${color}` }, color);
}

export function time(text, seconds) {
  return el("time", { datetime: text, title: text }, moment(text, seconds));
}

/** One number with its name; `note` below it. */
export function figure(name, value, note = "", tone = "") {
  return el("div", { class: `figure ${tone}`, "data-key": name }, el("dt", name), el("dd", value, note && el("small", note)));
}

/** A table with a caption; on a narrow screen each cell tells its column. `rows`: arrays of children. */
export function table(caption, columns, rows, { hidden = false, empty = "None.", keys = [], kind = "" } = {}) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const head = columns.map((column) => el("th", { scope: "col" }, column));
  const body = rows.map((row, place) =>
    el("tr", { "data-key": keys[place] ?? null }, row.map((cell, at) =>
      el(at ? "td" : "th", { scope: at ? null : "row", "data-label": columns[at] }, el("div", cell)))));
  return el("table", { class: `rows ${kind}` },
    el("caption", { class: hidden ? "visually-hidden" : null }, caption), el("thead", el("tr", head)), el("tbody", body));
}

/** A line of a day without axes; its words are for who does not see it. */
export function sparkline(values, words_, { top = null, height = 24 } = {}) {
  const numbers = values.filter((value) => value !== null);
  const width = 120;
  const high = top ?? Math.max(...numbers, 0);
  const picture = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": words_ });
  if (!numbers.length || !high) return picture;
  const step = width / Math.max(values.length - 1, 1);
  let path = "";
  let pen = false;
  values.forEach((value, place) => {
    if (value === null) {
      pen = false;
      return;
    }
    const y = height - 1 - (Math.min(value, high) / high) * (height - 3);
    path += `${pen ? "L" : "M"}${(place * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  });
  picture.append(svg("path", { d: path }));
  return picture;
}

/** A button that shows why it is disabled; `reason` empty: it can. It stays in the tab order to be read. */
export function action(name, text, pressed, { reason = "", tone = "", by = "" } = {}) {
  const hint = by || `why-${name}`;  // `by`: another action says the same reason already
  return el("div", { class: "action", "data-key": name },
    el("button", {
      type: "button",
      id: name,
      class: tone,
      "aria-disabled": reason ? "true" : null,
      "aria-describedby": reason ? hint : null,
      onclick: (event) => event.currentTarget.getAttribute("aria-disabled") !== "true" && pressed(),
    }, text),
    reason && !by && el("p", { class: "reason", id: hint }, reason));
}

/** Why the user cannot decide now; empty if they can. */
export function barred(context, role = "operator") {
  if (context.connection.state === "lost") return "The connection is lost: the data may be old.";
  const ranks = ["viewer", "operator", "admin"];
  if (ranks.indexOf(context.me.role) < ranks.indexOf(role)) {
    return `This needs the role ${role}; your token's role is ${context.me.role}.`;
  }
  return "";
}

/** Ask once more, with a text. `send(text, key)` returns a promise; what it refuses is shown, and can be tried again. */
export function confirm({ title, body, label, required, button, tone, send, max = 500 }) {
  return new Promise((resolve) => {
    const key = newKey();  // one decision: sent again after a lost connection it counts once
    const field = el("textarea", { id: "dialog-text", rows: 3, maxlength: max, "aria-describedby": "dialog-problem" });
    const problem = el("p", { class: "problem", id: "dialog-problem", role: "alert" });
    const yes = el("button", { type: "submit", class: tone }, button);
    const no = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = el("form", { method: "dialog", novalidate: true },
      el("h2", { id: "dialog-title" }, title), body,
      el("label", { for: "dialog-text" }, label, required ? "" : el("span", { class: "muted" }, " (optional)")), field, problem,
      el("div", { class: "buttons" }, yes, no));
    const dialog = el("dialog", { "aria-labelledby": "dialog-title" }, form);
    let result = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (yes.disabled) return;
      const text = field.value.trim();
      if (required && !text) {
        problem.textContent = "Enter a reason: the audit keeps it.";
        field.setAttribute("aria-invalid", "true");
        field.focus();
        return;
      }
      yes.disabled = true;
      problem.textContent = "";
      try {
        result = await send(text, key);
        dialog.close();
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        if ([401, 403, 404, 409, 410].includes(error.status)) {
          result = error;
          dialog.close();
          return;
        }
        problem.textContent = error.status === 400 ? error.message : `${error.message} Nothing is known of it here: you can send it again, it counts once.`;
        yes.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    form.querySelector("input, textarea").focus();
  });
}

/** A message above the page; it stays until the page changes. Focus goes there, so that it is read. */
export function notice(slot, tone, text, ...more) {
  fill(slot, el("div", { class: `notice ${tone}`, role: tone === "bad" ? "alert" : "status", tabindex: "-1" }, el("p", text), more));
  say("");
  slot.firstElementChild.focus({ preventScroll: true });
  slot.scrollIntoView({ block: "nearest" });
}

/** "This suggestion …" for a refusal of a decision. */
export function refused(error) {
  if (error.status === 403 && error.kind === "role-too-low") return `Not allowed. ${error.message}`;
  if (error.status === 0) return `${error.message} Whether it arrived is not known yet.`;
  return error.message;
}

/** Everything of a list, which comes in one answer. */
export async function list(path, member) {
  return (await get(path))[member];
}
