// Up and down buttons for a page: the person's question comes from your server, answers go to the
// service with the question's own token. No cookie, no identifier, no other token is in the page.
//
//   <div data-blindstep='{"status": "asked", "token": "...", ...}'></div>
//   <script src="https://the-service/static/blindstep.js" defer></script>
//
// After the first answer the second question's parameters arrive as an event, to be shown:
//   element.addEventListener("blindstep:show", (event) => render(event.detail.parameters));
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
    const show = () => {
      const asked = question && question.status === "asked";
      for (const each of buttons) { each.hidden = !asked; each.disabled = false; }
      if (question) {
        element.dispatchEvent(new CustomEvent("blindstep:show", { bubbles: true, detail: question }));
      }
    };
    const vote = async (value) => {
      for (const each of buttons) each.disabled = true;
      try {
        const taken = await send(question.token, value);
        question = taken.next;
        tell(taken.status === "accepted" ? (question ? "Thank you. And this one?" : "Thank you.") : "This question is over.");
      } catch {
        tell("That did not arrive. Please try again.");
      }
      show();
    };
    buttons.push(button("Good", "👍", () => vote(1)), button("Not good", "👎", () => vote(0)));
    element.append(...buttons, says);
    show();
  };

  document.querySelectorAll("[data-blindstep]").forEach(start);
})();
