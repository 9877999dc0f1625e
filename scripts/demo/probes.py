"""Messages written by hand, as a person types them: not made by the templates. They show how far it carries."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Probe:
    """The turns so far (user first, then in turn), and a pattern that the answer must hold."""

    pattern: str
    turns: tuple[str, ...]
    system: str | None = None

    def matches(self, answer: str) -> bool:
        return re.search(self.pattern, answer, re.IGNORECASE if self.system is None else 0) is not None


def ask(pattern: str, *turns: str, system: str | None = None) -> Probe:
    return Probe(pattern, turns, system)


REFUSAL = r"can't|don't know|not understand"
PROBES = [
    ask("^hello", "hi"),
    ask("^hello", "Hello!"),
    ask("^hello", "heyy"),
    ask("welcome", "thanks!"),
    ask("welcome", "thx a lot man"),
    ask("bye", "ok bye then"),
    ask("demo model", "who are you"),
    ask("demo model", "so what exactly are you?"),
    ask("arithmetic", "what can you do"),
    ask("arithmetic", "what sort of stuff are you able to do?"),
    ask("arithmetic", "help"),
    ask("fine", "how are you doing today?"),
    ask("program|demo model", "are you a real person"),
    ask("weft project|train_demo", "who built you?"),
    ask("demo model", "are you chatgpt?"),
    ask("server", "what is weft"),
    ask("server", "can you explain to me what weft is"),
    ask("server", "whats weft good for"),
    ask("scripts/serve", "how do i run you"),
    ask("scripts/serve", "how do i run weft on my macbook"),
    ask("scripts/serve", "How can I start the server?"),
    ask("scripts/serve", "i want to try it on my laptop, how"),
    ask("scripts/test", "how do i run the tests"),
    ask("scripts/test", "how to check everything passes"),
    ask("TOML|mesh", "how do i scale to 8 GPUs"),
    ask("TOML|mesh", "what do i have to change for a larger model"),
    ask("H100|Hopper|TPU", "which gpus are supported"),
    ask("H100|Hopper|TPU", "can it run on a tpu"),
    ask("launch_tpu_pod", "how do i start it on a tpu pod"),
    ask("launch_gpu", "how do i launch on an h100"),
    ask("grpc", "is there a grpc api?"),
    ask("base_url", "can i use the openai sdk with this"),
    ask("base_url", "does it work with the openai python client"),
    ask("train_demo", "how were you trained"),
    ask("million", "how many parameters do you have"),
    ask("weft plan", "how do i know if llama 70b fits on my gpus"),
    ask("weft chat|chat page", "is there a web ui"),
    ask("metrics", "do you have prometheus metrics"),
    ask(r"= 19\.", "whats 12+7"),
    ask(r"= 83\.", "what is 58 + 25?"),
    ask(r"= 912\.", "345+567"),
    ask(r"= 1000\.", "1 + 999"),
    ask(r"= 27\.", "what's 52 - 25"),
    ask(r"= 56\.", "7*8"),
    ask(r"= 56\.", "how much is 7 times 8?"),
    ask(r"= 12\.", "what is 84 / 7"),
    ask(r"= 8\.", "3 + 5 = ?"),
    ask(r"= 15\.", "I have 8 apples and get 7 more, how many do I have?"),
    ask("Paris", "capital of france"),
    ask("Paris", "What's the capital city of France?"),
    ask("Tokyo", "whats the capital of japan"),
    ask("Berlin", "tell me germany's capital please"),
    ask("Ottawa", "do you know the capital of Canada?"),
    ask("yen", "what currency do they use in japan"),
    ask("Au", "chemical symbol for gold"),
    ask("Fe", "what is the symbol of iron?"),
    ask(r"\b8\b", "atomic number of oxygen"),
    ask("cold", "what's the opposite of hot?"),
    ask("mice", "plural of mouse"),
    ask("puppy", "what is a baby dog called"),
    ask("Jupiter", "which planet is the biggest?"),
    ask("Mars", "what is the fourth planet from the sun"),
    ask("31", "how many days does january have"),
    ask("Wednesday", "what day comes after tuesday"),
    ask("Thursday", "if today is monday what day is it in 3 days"),
    ask("leap year", "is 2024 a leap year?"),
    ask("January", "what month is 3 months after october"),
    ask("5000", "how many meters are in 5 km"),
    ask("180", "3 hours in minutes"),
    ask("86", "30 celsius in fahrenheit"),
    ask("14", "how many days are 2 weeks?"),
    ask("2000", "convert 2 kg to grams"),
    ask("Nora", "Hi, my name is Nora", "Nice to meet you, Nora.", "what's my name?"),
    ask("Lisbon", "i live in Lisbon", "I will remember that.", "ok thanks", "You're welcome!", "where do i live?"),
    ask(
        "4711",
        "my locker code is 4711",
        "I will remember that.",
        "whats 2+2",
        "2+2: 2+2=4. So 2 + 2 = 4.",
        "what is my locker code",
    ),
    ask("not told", "what is my name?"),
    ask("sam", "hello i'm sam", "Nice to meet you, sam.", "do you remember my name"),
    ask("blue", "My favourite colour is blue", "I will remember that.", "What is my favourite colour?"),
    ask("^[^a-z]+$", "What is the capital of Italy?", system="Answer in capital letters only."),
    ask(r"^Paris\.?$", "What is the capital of France?", system="Be brief."),
    ask("Captain", "who are you?", system="You are Captain, a guide for ships."),
    ask("Ada", "what's your name", system="Your name is Ada. You help people."),
    ask("^[^a-z]+$", "hello", system="ALWAYS ANSWER IN UPPER CASE."),
    ask("Tuesday|9:00", "The museum opens at 9:00 and closes at 18:00. When does the museum open?"),
    ask(
        "Lena", "Passage: The bakery was founded by Lena Kohl in 1987. It is based in Graz.\n\nWho founded the bakery?"
    ),
    ask(
        "1987",
        "Passage: The bakery was founded by Lena Kohl in 1987. It is based in Graz.\n\nWhen was the bakery founded?",
    ),
    ask(
        "not say",
        "Passage: The bakery was founded by Lena Kohl in 1987. It is in Graz.\n\nHow many people work at the bakery?",
    ),
    ask(
        "45 euros",
        "Tickets for the concert cost 45 euros. It takes place in Vienna. How much is a ticket for the concert?",
    ),
    ask('"name": "Tom Baker"', "Extract name and age as JSON: My name is Tom Baker and I am 42 years old."),
    ask('"city": "Oslo"', "get the city as json from: I live in Oslo and work as a nurse"),
    ask(REFUSAL, "write me a poem about the sea"),
    ask(REFUSAL, "who won the world cup in 2018"),
    ask(REFUSAL, "what's the weather like today?"),
    ask(REFUSAL, "who is the president of the united states"),
    ask(REFUSAL, "explain quantum mechanics to me"),
    ask(REFUSAL, "translate good morning into french"),
    ask(REFUSAL, "what time is it"),
    ask(REFUSAL, "book me a flight to rome"),
    ask(REFUSAL, "i have a headache what should i do"),
    ask(REFUSAL, "how do i bake a cake?"),
    ask(REFUSAL, "write a python function that sorts a list"),
    ask(REFUSAL, "what is the meaning of life"),
    ask(REFUSAL, "asdfgh"),
    ask(REFUSAL, "how tall is the eiffel tower"),
    ask(REFUSAL, "who was napoleon"),
    ask(REFUSAL, "can you recommend a good movie"),
    ask("^peanut butter", "say peanut butter"),
    ask("HELLO WORLD", "write hello world in upper case"),
    ask("b-o-a-t", "spell boat"),
    ask("thread|loom", "tell me a joke"),
    ask("larger|91", "which is bigger, 19 or 91?"),
    ask("1, 2, 3, 4, 5", "count to 5"),
]
