# ruff: noqa: E501 -- lists of words, filled to the margin of an editor, not of the code
"""Word lists and made-up words that fill the slots of the dialogues."""

FIRST_NAMES = """Ada Adam Ahmed Aisha Alan Alba Alex Alice Amal Amina Amir Amy Ana Anders Andrea Andrew Angela Anita Anna Anton Aria Arjun Arthur
Astrid Ava Bart Beatrice Ben Bianca Bjorn Bob Boris Brian Bruno Camila Carl Carla Carlos Caroline Cecilia Chen Chloe Chris Clara Claude
Dan Daniel Daria David Deepa Diana Diego Dina Dmitri Dora Edith Edward Elena Eli Elif Elin Ella Emil Emily Emma Erik Esther Eva Farid Fatima
Felix Fiona Frank Freya Gabriel George Gina Grace Greta Gustav Hana Hannah Harry Hassan Helen Henry Hiro Hugo Ian Ibrahim Ida Igor Ines Ingrid
Irene Iris Isaac Isabel Ivan Jack Jacob James Jana Jane Javier Jean Jenny Jin Joan Joe John Jonas Jose Julia Julian Kai Karen Karim Kate Kenji
Kevin Kim Kira Lars Laura Layla Lea Leo Leon Li Liam Lila Lina Linda Lisa Louis Lucas Lucia Lucy Luis Luna Magnus Malik Marco Maria Marie Mark
Marta Martin Mary Matteo Maya Mei Mia Michael Miguel Mila Milan Mira Mohamed Mona Nadia Nancy Naomi Nina Noah Noor Nora Oliver Olga Omar Oscar
Otto Pablo Paul Paula Pedro Peter Petra Philip Priya Quinn Rachel Rafael Rahul Raj Rania Rebecca Rita Robert Rosa Ruth Ryan Sally Sam Samir
Sandra Sara Sarah Sean Sergei Simon Sofia Sonia Stefan Stella Sven Tara Tariq Theo Thomas Tim Tina Tom Tomas Uma Ursula Vera Victor Viktor
Vincent Walter Wei Wendy Will Yara Yasmin Yuki Yusuf Zara Zoe""".split()

SURNAMES = """Adler Ahmed Allen Anderson Baker Bauer Becker Bell Berg Bianchi Brandt Brown Carter Chen Clark Cohen Cole Costa Cruz Davis Diaz Dubois
Evans Fischer Ford Fox Garcia Gray Green Gupta Haas Hall Hansen Harris Hill Hughes Ito Jensen Jones Kaya Keller Khan Kim Klein Kowalski Kumar
Lee Lewis Lopez Lund Marino Martin Meyer Miller Moore Moreau Morgan Mori Nakamura Nguyen Novak Nowak Olsen Park Patel Perez Petrov Popov Price
Reed Reyes Ricci Rossi Roy Ruiz Sato Schmidt Scott Shah Silva Singh Smith Stone Suzuki Tanaka Taylor Torres Turner Vega Wagner Walker Wang
Weber White Wilson Wolf Wong Wood Wright Yamada Young Zhang""".split()

CITIES = """Aarhus Accra Athens Atlanta Austin Baku Bergen Berlin Bern Bilbao Bogota Bonn Boston Bremen Brno Cairo Calgary Chicago Cologne Cork
Dakar Dallas Delhi Denver Dubai Dublin Dresden Essen Florence Geneva Genoa Ghent Glasgow Graz Hamburg Hanoi Helsinki Houston Istanbul Jakarta
Kiel Kobe Krakow Kyoto Lagos Lahore Leeds Leipzig Lille Lima Lisbon Liverpool London Lyon Madrid Malaga Malmo Manila Marseille Melbourne Miami
Milan Montreal Mumbai Munich Nairobi Naples New York Nice Odessa Osaka Oslo Oxford Palermo Paris Perth Pisa Porto Prague Pune Quito Riga Rome
Rotterdam Salzburg Seattle Seoul Seville Sofia Split Stockholm Sydney Tallinn Tampa Tokyo Toronto Trieste Tunis Turin Utrecht Valencia Venice
Vienna Vilnius Warsaw York Zagreb Zurich""".replace("New York", "New_York").split()

JOBS = """teacher nurse doctor baker driver pilot lawyer farmer painter plumber dentist chef engineer programmer student librarian gardener
carpenter musician writer journalist architect chemist biologist accountant mechanic electrician firefighter tailor translator designer manager
photographer sailor waiter butcher barber cook judge clerk singer dancer actor coach editor welder miner florist optician""".split()

COLOURS = "red blue green yellow orange purple pink brown black white grey silver gold turquoise violet beige crimson indigo teal".split()

FOODS = """pizza pasta sushi rice soup salad bread cheese chocolate apples bananas cherries curry noodles tacos dumplings pancakes waffles
strawberries mangoes lasagna risotto ramen burgers fish olives mushrooms tomatoes potatoes carrots honey yogurt""".split()

ANIMALS = """cat dog horse rabbit hamster parrot goldfish turtle snake lizard mouse rat goat sheep cow pig duck goose hen pony ferret canary
gecko spider frog donkey""".split()

THINGS = """apple book car chair cup desk door egg flower garden guitar hammer house jacket key kite ladder lamp letter map mirror needle
notebook painting pencil piano picture plate pot radio ring river rope shoe shovel spoon stone table tent ticket tower train tree umbrella
violin wallet watch wheel window bottle basket blanket bridge bucket candle carpet clock coat coin drum engine fence glove hat helmet kettle
knife lantern magnet marble motor nail oven parcel pillow pipe pump scarf shelf ship sofa suitcase telescope towel truck vase wagon""".split()

HOBBIES = """chess tennis football painting reading swimming hiking cycling cooking fishing dancing gardening running sailing skiing surfing
climbing knitting photography pottery singing yoga archery boxing fencing golf rowing judo""".split()

TOPICS = """quantum physics|the french revolution|black holes|the stock market|bitcoin|climate change|photosynthesis|machine learning|philosophy|
the roman empire|world war two|evolution|gravity|inflation|the internet|volcanoes|dinosaurs|the moon landing|jazz|opera|the human brain|vaccines|
vitamins|marriage|love|happiness|religion|politics|economics|football|basketball|cricket|the olympics|cars|electric cars|airplanes|rockets|
robots|artificial intelligence|video games|minecraft|cooking|baking|wine|coffee|tea|gardening|roses|cats|dogs|horses|sharks|whales|bees|
spiders|the ocean|rivers|mountains|deserts|the rainforest|recycling|solar power|nuclear energy|batteries|computers|laptops|phones|linux|
windows|python|rust|javascript|sql|databases|docker|kubernetes|git|the cloud|encryption|blockchain|statistics|calculus|algebra|geometry|
topology|poetry|shakespeare|novels|harry potter|star wars|movies|hollywood|painting|picasso|sculpture|photography|fashion|shoes|travel|
hotels|airlines|visas|taxes|mortgages|insurance|pensions|salaries|interviews|resumes|school|university|exams|homework|teaching|children|
babies|sleep|dreams|headaches|diabetes|cancer|allergies|exercise|yoga|running|diets|protein|sugar|salt|chocolate|cheese|bread|the weather|
snow|rain|hurricanes|earthquakes|the sun|mars|stars|galaxies|time travel|aliens|ghosts|magic|chess|poker|music theory|guitars|pianos|
drums|the beatles|mozart|beethoven|napoleon|cleopatra|gandhi|einstein|newton|darwin|tesla|elon musk|the president|the pope|the queen|
democracy|communism|capitalism|law|contracts|crime|police|war|peace|trade|china|america|africa|europe|antarctica|egypt|the pyramids|
vikings|pirates|samurai|knights|castles|bridges|trains|bicycles|boats|submarines|clocks|calendars|languages|grammar|latin|emojis""".replace(
    "\n", ""
).split("|")

ONSETS = """b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sc sh sk sl sm sn sp st str sw t th tr tw v w y z""".split()
VOWELS = "a e i o u a e i o u ai ea ee ia io oa oo ou".split()
CODAS = [
    "",
    "",
    "",
    "",
    "",
    "n",
    "r",
    "l",
    "s",
    "m",
    "t",
    "d",
    "k",
    "x",
    "nd",
    "rt",
    "lm",
    "ss",
    "ck",
    "st",
    "ng",
    "rn",
    "p",
    "sh",
    "b",
    "g",
]
