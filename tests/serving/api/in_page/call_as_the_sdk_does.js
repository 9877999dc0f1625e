// The request that OpenAI's JavaScript library makes in a browser, with the headers that make it ask first.
async ({ baseURL, body }) => {
  try {
    const response = await fetch(`${baseURL}/chat/completions`, {
      method: "POST",
      headers: {
        "Accept": "application/json",
        "Authorization": "Bearer unused",
        "Content-Type": "application/json",
        "X-Stainless-Lang": "js",
        "X-Stainless-Package-Version": "6.0.0",
        "X-Stainless-Retry-Count": "0",
        "X-Stainless-Runtime": "browser:chrome",
        "X-Stainless-Timeout": "600",
      },
      body: JSON.stringify(body),
    });
    return { status: response.status, request_id: response.headers.get("x-request-id"), text: await response.text() };
  } catch (error) {
    return { failed: String(error) };
  }
}
