// Buttons for a page: the person's question comes from your server, answers go to the service with the
// question's own token. No cookie, no identifier, no other token is in the page.
//
//   <div data-blindstep='{"status": "asked", "token": "...", ...}'></div>
//   <script src="https://the-service/static/blindstep.js" defer></script>
//
// A person answers twice, about two sets of parameters. After the first answer the page is loaded again,
// and your server, which asks again, gets the second question. A page that draws parameters itself says
// so, and is not loaded again:
//   element.addEventListener("blindstep:show", (event) => {
//     event.preventDefault();
//     render(event.detail.parameters);
//   });
"use strict";
(() => {
  const service = new URL(document.currentScript.src).origin;

  const send = async (token, value, tries = 5) => {
    for (let wait = 250; ; wait *= 2) {
      try {
        const response = await fetch(`${service}/v1/answers`, {
          method: "POST",
          credentials: "omit",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ token, value }),
        });
        // Busy or away: an answer may be sent again, the first one is kept.
        if (response.ok || (response.status < 500 && response.status !== 429)) {
          return response.ok ? await response.json() : { status: "refused", next: null };
        }
      } catch {
        // No network: as if it were busy.
      }
      if (--tries <= 0) throw new Error("the service is busy");
      await new Promise((done) => setTimeout(done, wait));
    }
  };

  const button = (said, sign, chosen) => {
    const made = document.createElement("button");
    made.type = "button";
    made.setAttribute("aria-label", said);
    made.textContent = sign;
    made.addEventListener("click", chosen);
    return made;
  };

  const start = (element) => {
    let question = JSON.parse(element.dataset.blindstep);
    const says = document.createElement("span");
    says.setAttribute("role", "status");
    const buttons = [];
    const tell = (text) => { says.textContent = text; };
    const show = (answered) => {
      const asked = question && question.status === "asked";
      for (const each of buttons) { each.hidden = !asked; each.disabled = false; }
      if (!question) return;
      const event = new CustomEvent("blindstep:show", { bubbles: true, cancelable: true, detail: question });
      const drawn = !element.dispatchEvent(event);
      if (answered && !drawn) {  // what is asked about now is not what the page shows
        for (const each of buttons) each.disabled = true;
        location.reload();
      }
    };
    const vote = async (value) => {
      for (const each of buttons) each.disabled = true;
      let answered = false;
      try {
        const taken = await send(question.token, value);
        question = taken.next;
        answered = true;
        tell(taken.status === "accepted" ? (question ? "Thank you. And this one?" : "Thank you.") : "This question is over.");
      } catch {
        tell("That did not arrive. Please try again.");
      }
      show(answered);
    };
    if (question && question.options) {
      buttons.push(button("The first is better", "1", () => vote(-1)), button("The second is better", "2", () => vote(1)));
    } else {
      buttons.push(button("Good", "👍", () => vote(1)), button("Not good", "👎", () => vote(0)));
    }
    element.append(...buttons, says);
    show(false);
  };

  document.querySelectorAll("[data-blindstep]").forEach(start);
})();
