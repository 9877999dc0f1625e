"""What a model writes must do nothing in the browser."""

import pytest
from playwright.sync_api import Error, expect

from tests.serving.api.page.chat_tab import Tab, answered, prose
from tests.serving.api.page.scripted_chat import ScriptedChat


def test_markup_in_the_models_output_does_nothing(tab: Tab, chat: ScriptedChat) -> None:
    page = tab.page
    attack = (
        "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>\n\n"
        "<style>body { display: none }</style>\n\n<iframe src='javascript:window.hit = 1'></iframe>\n\n"
        "[link](javascript:window.hit=1) ![pixel](http://192.0.2.1/pixel.png) [docs](https://example.org)\n\n"
        '```html\n<img src=x onerror="window.hit = 1">\n```\n\n```x"onmouseover="window.hit=1\ncode\n```\n'
    )
    answered(page, chat, attack, attack)
    expect(prose(page)).to_contain_text("<script>window.hit = 1</script>")
    assert page.evaluate("window.hit") is None
    assert page.locator("#transcript :is(script, style, iframe, img, [style])").count() == 0
    links = prose(page).locator("a")
    assert [link.get_attribute("href") for link in links.all()] == ["http://192.0.2.1/pixel.png", "https://example.org"]
    assert {link.get_attribute("rel") for link in links.all()} == {"noopener noreferrer nofollow"}
    assert all(url.startswith((tab.address, "data:")) for url in tab.requested)


def test_the_policy_blocks_a_script_that_got_past_everything_else(tab: Tab) -> None:
    page = tab.page
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("() => { document.body.innerHTML = '<img src=x onerror=\"window.hit = 1\">'; }")
    blocked = page.evaluate(
        """() => new Promise((resolve) => {
            document.addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
            const link = document.createElement("a");
            link.href = "javascript:window.hit = 1";
            document.body.append(link);
            link.click();
        })"""
    )
    assert blocked in ("script-src-elem", "require-trusted-types-for")
    assert page.evaluate("window.hit") is None
    assert len(tab.complaints) > 0
    tab.complaints.clear()
