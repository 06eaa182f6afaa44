// Run a worker's script in a hidden frame. Browsers start no workers on pages opened from disk, and the search is one.
class FrameWorker extends EventTarget {
  constructor(script) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    this.scope = frame.contentWindow;
    addEventListener("message", (event) => {
      if (event.source !== this.scope) return;
      this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      this.onmessage?.(event);
    });
    this.scope.document.open();
    this.scope.document.write(
      `<script>postMessage = (data) => parent.postMessage(data, "*")</script><script src="${script}"></script>`,
    );
    this.scope.document.close();
    this.loaded = new Promise((done) => this.scope.addEventListener("load", done));
  }

  postMessage(data) {
    this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })));
  }

  terminate() {
    this.scope.frameElement.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
