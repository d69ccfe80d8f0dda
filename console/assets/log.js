// The last log lines of a rollout's new server, updated while it starts and during the canary.

import { at, get, Problem } from "./api.js";
import { el, fill } from "./dom.js";
import { time } from "./parts.js";

const SPEAKS_OF_MORE = [0, 401, 404];  // refusals that concern the whole page, not only the log

export class Tail {
  constructor(rollout) {
    this.path = at("rollouts", rollout, "log");
    this.note = el("p", { class: "muted" });
    this.text = el("pre", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Green's log" });
    this.node = el("section", { "aria-label": "Green's log", hidden: true }, el("h2", "Green's log"), this.note, this.text);
  }

  async refresh() {
    try {
      this.show(await get(this.path));
    } catch (error) {
      if (!(error instanceof Problem) || SPEAKS_OF_MORE.includes(error.status)) throw error;
      fill(this.note, error.message);
    }
  }

  show(answer) {
    this.node.hidden = !answer.live;  // the page of an ended rollout shows the kept lines
    this.text.hidden = !answer.lines.length;
    fill(this.note, answer.why || ["The last lines of ", answer.server, ", read at ", time(answer.at), "."]);
    const { scrollTop, clientHeight, scrollHeight } = this.text;
    const atEnd = scrollTop + clientHeight >= scrollHeight - 4;
    fill(this.text, answer.lines.join("\n"));
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;  // keep the place of a reader who has scrolled up
  }
}
