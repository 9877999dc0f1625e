// What the event stream parser makes of `text`, for every place where it may be cut in two, and cut at all of them.
async (text) => {
  const { EventStreamParser } = await import("/static/js/event_stream.js");
  const read = (pieces) => {
    const parser = new EventStreamParser();
    return JSON.stringify(pieces.flatMap((piece) => parser.push(piece)));
  };
  const cuts = [...text].map((_, at) => read([text.slice(0, at), text.slice(at)]));
  return [...new Set([...cuts, read([...text])])];
}
