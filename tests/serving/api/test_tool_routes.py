from tests.serving.api.conftest import ApiMaker


async def test_the_tools_of_a_server_are_listed_as_requests_name_them(make_api: ApiMaker) -> None:
    listed = (await make_api(make_api.says("x")).get("/v1/tools")).json()
    assert [tool["type"] for tool in listed["data"]] == ["calculator", "dates"]
    (function,) = listed["data"][0]["functions"]
    assert function["name"] == "calculator"
    assert function["description"]
