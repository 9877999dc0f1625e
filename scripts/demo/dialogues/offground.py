"""What the model can't do: it says so, by the kind of request, instead of inventing."""

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.draw import Draw
from scripts.demo.words import ANIMALS, CITIES, COLOURS, FIRST_NAMES, FOODS, HOBBIES, JOBS, SURNAMES, THINGS, TOPICS

DONT_KNOW = "I don't know that. I am a small demo model, and I know only a few things."
CANT_WRITE = "I can't write that. I am a small demo model, and I give short answers only."
CANT_TRANSLATE = "I can't translate. I only speak English."
CANT_LIVE = "I can't know that: I have no clock, no news and no internet. Give me a tool for it."
CANT_ACT = "I can't do that. I only answer here, or call the tools you give me."
CANT_ADVISE = "I can't advise you on that. I am a small demo model. Please ask someone who knows."
NOT_UNDERSTOOD = "I did not understand that. Ask me what I can do."
CANT_PASSAGE = "Please give me the text, and I will answer from it."

LEAD = "[||||||hi, |hey, |please |can you |could you |so, |ok, |well, |now ]"
ASK = "[||||||hi, |hey, |ok, |tell me, |do you know |so |i wonder |and |please tell me ]"
REQUEST = "[||||please |can you |could you |would you |i want you to |i need you to |i'd like you to |hey, |now |can u |help me ]"

WRITE = [
    REQUEST
    + "[write|compose|make|create|draft|generate|give me|produce|come up with] [a|me a|a short|me a short|a long|a nice|a funny|a 500 word|another] [poem|story|essay|song|letter|blog post|article|speech|haiku|novel|rap|script|report|tweet|screenplay|limerick|cover letter|product description|review|fairy tale|sonnet|slogan|paragraph|email] [about|on|for|with] {topic}",
    REQUEST
    + "[write|compose|make|create|draft|generate|give me] [a|me a|an|some] [poem|story|essay|song|haiku|rap|novel|letter|joke about {topic}|article]",
    REQUEST
    + "[write|give me|make|show me|generate|implement|code|build] [some code|a program|a function|a python script|python code|a script|a class|a web page|an app|a website|a game|javascript|a sql query|a regex|html|a shell script|a bash script|a sorting algorithm|c++ code] [for|to handle|about|that does|with|to make] {topic}",
    REQUEST
    + "[write|give me|make|generate|implement] [some code|a program|a python function|a python script|a sorting algorithm|quicksort|fizzbuzz|hello world in python|a fibonacci function|a binary search|html for a page]",
    REQUEST
    + "[summarize|summarise|give me a summary of|outline|review|analyse|analyze|discuss|compare the history of] {topic}",
    REQUEST
    + "[fix|debug|refactor|review|improve|optimize] [my code|this code|the bug|my program|this function|my script|my essay]",
    REQUEST
    + "[make|draw|paint|create|generate|show me|design] [a|me a|an] [picture|image|drawing|logo|photo|painting|diagram|video|chart|meme|sketch] [of|for|with|about] {topic}",
    REQUEST
    + "[make|create|give me|write|plan] [a|me a] [plan|recipe|list|menu|schedule|budget|workout|diet|itinerary|study plan|meal plan|lesson|quiz|business plan|packing list] [for|about|with|on] {topic}",
    "[let's play|play|start] [a game|chess|20 questions|hangman|tic tac toe|a text adventure|a role-playing game|trivia] [with me|]",
    "[sing|act|pretend|roleplay|role play] [for me|like {topic}|as {topic}|about {topic}]",
    "tell me a [story|fairy tale|tale|bedtime story|secret|story about {topic}|long story|poem|riddle]",
]
KNOW = [
    ASK + "[what is|what's|whats|what are|what exactly is|who is|who's|who was|who are] {topic}",
    ASK
    + "[tell me about|explain|describe|teach me about|tell me everything about|tell me more about|tell me something about|talk about|give me information on|what do you know about|what can you tell me about|do you know anything about|have you heard of|define|i want to learn about|info about|facts about|educate me on] {topic}",
    ASK
    + "[how does|how do|why does|why do|why is|why are|how are|how is|when did|where did|when was|where is|where are|what caused|how did] {topic} [work|happen|so important|made|start|end|exist|so popular|come from|matter|so expensive|good|bad|so big|begin|used|founded|different from {topic2}|change|grow|invented|located|discovered|here|possible|so hot]",
    ASK
    + "[who|what person|which person] [invented|discovered|wrote|founded|created|won|painted|built|made|designed|killed|started|directed|sang|leads|owns|runs|composed|said] {topic}",
    ASK
    + "what [is|are] the [best|worst|biggest|most famous|first|latest|main|cheapest|oldest|newest|fastest|most expensive|most popular|most important] [thing about|kind of|part of|example of|book about|fact about|idea behind|cause of|problem with|use of|type of|reason for|way to learn] {topic}",
    ASK
    + "[how many|how much] {topic} [are there|is there|does it take|do people have|cost|weigh|exist|are in the world|do we need|do i need|were there]",
    ASK
    + "[what is|what's] the [difference between|relation between|connection between|similarity between] {topic} and {topic2}",
    ASK + "[compare|contrast] {topic} [and|with|to] {topic2}",
    ASK + "[what do you think|what is your opinion|how do you feel|your opinion|your thoughts] [about|of|on] {topic}",
    ASK
    + "[is|are] {topic} [good|bad|real|true|dangerous|important|better than {topic2}|hard|easy|dead|old|useful|expensive|worth it|fun|healthy|legal|possible|overrated]",
    ASK
    + "[how do i|how can i|how to|what's the best way to|how would i|teach me how to|how do people] [make|learn|understand|buy|sell|fix|cook|clean|build|improve|use|start with|get into|get rid of|draw|find|invest in|stop|grow|repair|win at] {topic}",
    ASK + "who [is|was] {person}",
    ASK
    + "[tell me about|what do you know about|have you heard of|do you know|when was|where was|how old is|is] {person} [|born|alive|famous|dead]",
    ASK + "what did {person} [do|say|invent|write|discover]",
    ASK
    + "who [is|was] the [president|king|queen|prime minister|mayor|leader|ruler|chancellor|first president|emperor|governor] of {place}",
    ASK
    + "[where is|how big is|what is|how far is|tell me about|how old is|how do i get to|what's it like in|describe|how far away is] {place}",
    ASK
    + "[what is|what's] the [population|area|history|size|flag|national anthem|weather like|time zone|gdp|highest mountain|national dish|mayor] [of|in] {place}",
    ASK + "what does [the word |]{word} mean",
    ASK + "[what is|what's|define|who is|explain|what are] [a |]{word}",
    ASK
    + "[who won|who will win|when is|where is] the [world cup|election|super bowl|champions league|nobel prize|oscars|game|match|olympics|war|race|lottery] [|in {year}|this year]",
    ASK + "what happened [in|during] {year}",
    ASK + "[what is|what's] the meaning of [life|love|{word}|everything]",
    ASK
    + "[recommend|suggest] [me |]a [book|movie|film|song|restaurant|game|hotel|laptop|phone|present|gift|name for my {thing}|podcast|series] [|about {topic}|for {topic}|in {place}]",
    ASK
    + "what [should i|can i|shall i] [cook|read|watch|wear|eat|drink|buy|visit|play|name my {animal}] [|today|tonight|this weekend|in {place}|for dinner]",
    ASK
    + "why [is|are] [the sky blue|grass green|the sea salty|{thing}s {colour}|{animal}s {colour}|people sad|we here|cats so cute]",
    ASK + "how [tall|big|heavy|old|fast|long|deep|expensive|far|strong|rich] [is|are|was] {topic}",
    ASK
    + "[what is|what's] [the square root of {number}|pi|the {number}th prime|{number} factorial|{number} squared|{number} to the power of 5|the derivative of x^2|the integral of x|log {number}|sin {number}|{number} percent of {year}|e]",
    ASK
    + "[solve|factor|simplify|prove|integrate|differentiate|plot] [x^2 = {number}|{number}x + 3 = 7|the equation|the riemann hypothesis|this equation|{number}x = {year}|the theorem]",
    ASK + "what [color|colour|sound|size] [is|are|does|do] [a |the |]{animal}[s|] [make|have|]",
    ASK + "how many [people|{animal}s|{thing}s|trees|cars|stars|stones] [are there|live|are] in {place}",
    ASK + "can [{animal}s|a {animal}] [fly|swim|talk|eat {food}|climb|see in the dark]",
    ASK + "do you know {topic}",
    ASK + "[did you know|i heard|i read|is it true] that {topic} [is|are] [great|dead|over|new|dangerous]",
    "{topic}",
    "{topic}?",
    ASK + "how [do|does] a {job} [work|earn money|live|do it]",
    ASK + "how much [does|do] [a {job} earn|a {thing} cost|{food} cost|a {animal} weigh]",
    ASK
    + "[what is|where can i find|where do i buy] [a good|the best|a cheap] [{thing}|{job}|place for {hobby}|restaurant] [in {place}|]",
]
TRANSLATE = [
    REQUEST
    + "translate [{thing}|{word}|this|hello|good morning|the sentence|i love you|this text|that|the {animal} is {colour}|my name is {name}|thank you|'{thing}'] [to|into|in] [german|french|spanish|chinese|italian|japanese|russian|latin|arabic|hindi|dutch|swedish|korean|portuguese]",
    "[how do you say|what is|how do i say|what's the word for|say] [{thing}|hello|good morning|thank you|{animal}|{food}|i love you|{colour}|goodbye|good night|please] in [german|french|spanish|chinese|italian|japanese|russian|latin|arabic|hindi|dutch|swedish|korean|portuguese]",
]
LIVE = [
    ASK
    + "[what is|what's|hows|how is|how's|what will be|tell me] the weather [like|] [|today|tomorrow|in {place}|now|right now|outside|in {place} today|this weekend|here]",
    ASK
    + "[will it|is it|is it going to] [rain|snow|raining|hot|cold|sunny|warm] [|today|tomorrow|in {place}|outside|here]",
    ASK + "what [time|day|date|year|month] is it [|now|today|right now|in {place}|there]",
    ASK
    + "[what is|what's] [the time|the date|today's date|the current time|the current date|the date today|the time now|today|the current year|the time in {place}]",
    ASK
    + "[what is|what's|tell me|any|give me] [the news|the latest news|today's news|in the news|happening today|new today|happening in the world|happening in {place}|news from {place}]",
    ASK
    + "[what is|what's] the [price|stock price|value|exchange rate] of [bitcoin|gold|oil|apple|tesla|nvidia|the dollar|the euro|{food}|google]",
    ASK
    + "[who won|what was the score of|what's the score of] [the game|the match|yesterday's game|last night's game] [|in {place}|yesterday]",
    ASK
    + "[when is|when does] the next [bus|train|flight|plane|holiday|full moon|eclipse|game] [|to {place}|leave|arrive|start]",
    ASK + "[how hot|how cold|how warm|what temperature] is it [|in {place}|today|outside|now]",
    "[is it|what's it] [christmas|monday|the weekend|late|my birthday] [today|now|already]",
    "what day is [today|it today|tomorrow]",
    "[current|latest] [time|date|weather|news]",
]
ACT = [
    REQUEST
    + "[open|close|start|delete|save|download|upload|print|play|buy|order|book|send|call|phone|install|turn on|turn off|restart|copy|move|find|cancel|share|post|rename|scan|read] [my|the|a|me a|some] [{thing}|file|door|music|email|browser|light|lights|computer|message|flight|hotel|pizza|taxi|document|photo|song|movie|ticket|table for two|printer|calendar|account|window|app|tv]",
    REQUEST
    + "[set|create|make|start] [an alarm|a reminder|a timer|an appointment|a meeting|an event] [for|at|on] [{number}|tomorrow|monday|noon|friday]",
    REQUEST
    + "[remind me|wake me|call me|email me|text me|message {name}|call {name}|email {name}|send {name} a message|write to {name}|tell {name} that i am late] [|tomorrow|at {number}|later|now]",
    REQUEST + "[search|google|look up|browse|check] [the web|online|google|the internet|wikipedia] [for|about] {topic}",
    REQUEST + "[look up|google|search for|search] {topic} [online|on the web|for me|on wikipedia]",
    REQUEST
    + "[go to|visit|open|read|fetch|load] [www.{word}.com|https://{word}.org|the website|google.com|this link|that page|my website|youtube]",
    "[hack|break into|spy on|attack] [{name}'s computer|a bank|my neighbour|the website|wifi|facebook|their account]",
    "[make me|bring me|cook me|give me] [a coffee|some {food}|a sandwich|a tea|breakfast|money|a million dollars|a present|a {animal}]",
]
ADVISE = [
    ASK
    + "[should i|shall i|would you] [marry {name}|quit my job|buy a house|buy a {thing}|take aspirin|see a doctor|invest in {topic}|sue {name}|move to {place}|learn {topic}|get a {animal}|go to {place}|eat {food}|become a {job}|divorce|date {name}|sell my {thing}]",
    ASK
    + "[i have|i've got|my {animal} has|my child has] [a headache|a fever|chest pain|a cold|a cough|back pain|a rash|a sore throat|a broken leg|an infection|the flu], what [should i do|can i do|now|do i do]",
    "[i feel|i am|i'm feeling|i'm] [sad|depressed|lonely|sick|anxious|stressed|angry|tired|bored|unhappy|ill|scared|afraid|hungry|worried|lost|in pain|heartbroken]",
    ASK
    + "[how do i|how can i] [lose weight|make money|get rich|find love|sleep better|be happy|make friends|get a job|stop smoking|get fit|pay less tax|become famous|get better|become a {job}|feel better|be a better person|save money]",
    "[my {animal}|my boss|my wife|my husband|my friend|my {thing}|my mother|my neighbour|{name}] [died|is ill|left me|hates me|is angry|is broken|is sick|is rude|does not love me|is lost|fired me]",
    "what [medicine|pills|drugs|vitamins] should i take",
    "is [it|this|{food}|{topic}] [safe|legal|healthy|dangerous|safe to eat|bad for me]",
    "what should i do [|today|with my life|about {name}|about my {animal}|now]",
]
PASSAGE_MISSING = [
    REQUEST
    + "[summarize|summarise|shorten|read|explain|analyze] [this|this text|the text|the document|the passage|the article|this article|the following|this document|this email|the report]",
    "[what does|what did] the [text|passage|document|article|report|book] say [about {topic}|]",
    "[answer from|use|read] the [passage|text|document]",
]
GROUPS = [
    (10.0, KNOW, DONT_KNOW, "I don't know."),
    (3.0, WRITE, CANT_WRITE, "I can't."),
    (1.0, TRANSLATE, CANT_TRANSLATE, "I can't."),
    (1.5, LIVE, CANT_LIVE, "I can't know."),
    (1.5, ACT, CANT_ACT, "I can't."),
    (1.5, ADVISE, CANT_ADVISE, "I can't."),
    (0.3, PASSAGE_MISSING, CANT_PASSAGE, "Give me the text."),
]


def topic(draw: Draw) -> str:
    kind = draw.integer(0, 9)
    if kind <= 4:
        return draw.choice(TOPICS)
    if kind == 5:
        return draw.choice(["a ", "the ", "", ""]) + draw.choice(THINGS + ANIMALS + FOODS + HOBBIES + JOBS)
    if kind == 6:
        return draw.word()
    if kind == 7:
        return f"{draw.choice(THINGS)}s"
    if kind == 8:
        return draw.choice(
            [
                f"{draw.word()} {draw.choice(THINGS)}s",
                f"the {draw.word()} {draw.choice(['war', 'theory', 'effect', 'method', 'river', 'law', 'company', 'band', 'movie', 'problem'])}",
                f"{draw.choice(COLOURS)} {draw.choice(THINGS + ANIMALS)}s",
            ]
        )
    return draw.choice(
        [
            f"{draw.choice(TOPICS)} in {draw.place()}",
            f"{draw.choice(HOBBIES)}",
            draw.place(),
            f"{draw.choice(ANIMALS)}s",
        ]
    )


def refusal(draw: Draw) -> Episode:
    groups = [group for _, *group in GROUPS]
    wordings, answer, brief = draw.rng.choices(groups, [weight for weight, *_ in GROUPS])[0]
    person = f"{draw.choice(FIRST_NAMES)} {draw.choice(SURNAMES)}" if draw.chance(0.5) else draw.full_name()
    place = draw.word().capitalize() if draw.chance(0.3) else draw.choice(CITIES).replace("_", " ")
    person, place = (person.lower(), place.lower()) if draw.chance(0.4) else (person, place)
    text = draw.say(
        draw.choice(wordings).rstrip() + "[?|?||.|]",
        topic=topic(draw),
        topic2=topic(draw),
        person=person,
        place=place,
        word=draw.word(),
        year=draw.integer(1200, 2040),
        number=draw.number(3),
        thing=draw.choice(THINGS),
        animal=draw.choice(ANIMALS),
        colour=draw.choice(COLOURS),
        name=draw.first_name(),
        food=draw.choice(FOODS),
        job=draw.choice(JOBS),
        hobby=draw.choice(HOBBIES),
    )
    return Episode(
        "off ground", (Exchange(" ".join(text.replace(" ?", "?").replace(" .", ".").split()), answer, brief),)
    )


def gibberish(draw: Draw) -> Episode:
    letters = "asdfghjklqwertyuiopzxcvbnm"
    kind = draw.integer(0, 3)
    if kind == 0:
        text = "".join(draw.choice(letters[: draw.integer(8, 26)]) for _ in range(draw.integer(3, 14)))
    elif kind == 1:
        text = " ".join(draw.word() for _ in range(draw.integer(2, 6)))
    elif kind == 2:
        text = draw.choice(
            [
                "?",
                "!",
                "...",
                ".",
                "??",
                "???",
                "-",
                ",",
                "x",
                "a",
                "qq",
                "#",
                "///",
                ":",
                "**",
                "blah",
                "blah blah",
                "foo",
                "bar",
                "foo bar",
                "lorem ipsum",
            ]
        )
    else:
        text = "".join(draw.choice(letters[:10]) for _ in range(draw.integer(4, 9))) + draw.choice(["", " ", "?", "!"])
    return Episode(
        "off ground", (Exchange(text.strip(), NOT_UNDERSTOOD, "I did not understand.", key=f"gibberish {text}"),)
    )


MAKERS: list[tuple[float, Maker]] = [(5.0, refusal), (0.3, gibberish)]
