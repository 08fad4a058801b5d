// Server-sent events while the page is visible: a browser opens few connections to one server.

/** Call `handlers[name](data)` for each event; `onLost(lost)` when the server is gone or back. */
export function follow(url, handlers, onLost = () => {}) {
  let source = null;
  let ended = false;

  function stop() {
    source?.close();
    source = null;
  }

  function start() {
    if (source || ended || document.hidden) return;
    source = new EventSource(url);
    source.addEventListener("open", () => onLost(false));
    source.addEventListener("error", () => onLost(true));
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        if (name === "ended") {
          ended = true;
          stop();
        }
        handle(JSON.parse(event.data));
      });
    }
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", start);
  start();
}
