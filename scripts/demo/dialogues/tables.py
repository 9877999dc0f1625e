"""The tables of facts: countries, elements, planets, words and single facts."""

# country: capital, currency, continent, language
COUNTRIES = {
    line.split(":")[0]: tuple(line.split(":")[1].split(","))
    for line in """France:Paris,euro,Europe,French
Germany:Berlin,euro,Europe,German
Italy:Rome,euro,Europe,Italian
Spain:Madrid,euro,Europe,Spanish
Portugal:Lisbon,euro,Europe,Portuguese
Austria:Vienna,euro,Europe,German
Greece:Athens,euro,Europe,Greek
Ireland:Dublin,euro,Europe,English
Finland:Helsinki,euro,Europe,Finnish
the Netherlands:Amsterdam,euro,Europe,Dutch
Estonia:Tallinn,euro,Europe,Estonian
Latvia:Riga,euro,Europe,Latvian
Lithuania:Vilnius,euro,Europe,Lithuanian
Croatia:Zagreb,euro,Europe,Croatian
Slovakia:Bratislava,euro,Europe,Slovak
Slovenia:Ljubljana,euro,Europe,Slovene
Sweden:Stockholm,krona,Europe,Swedish
Norway:Oslo,krone,Europe,Norwegian
Denmark:Copenhagen,krone,Europe,Danish
Iceland:Reykjavik,krona,Europe,Icelandic
Poland:Warsaw,zloty,Europe,Polish
Hungary:Budapest,forint,Europe,Hungarian
Romania:Bucharest,leu,Europe,Romanian
Ukraine:Kyiv,hryvnia,Europe,Ukrainian
Russia:Moscow,ruble,Europe,Russian
Serbia:Belgrade,dinar,Europe,Serbian
Albania:Tirana,lek,Europe,Albanian
England:London,pound,Europe,English
the United Kingdom:London,pound,Europe,English
Turkey:Ankara,lira,Asia,Turkish
Japan:Tokyo,yen,Asia,Japanese
China:Beijing,yuan,Asia,Chinese
India:New Delhi,rupee,Asia,Hindi
Pakistan:Islamabad,rupee,Asia,Urdu
Bangladesh:Dhaka,taka,Asia,Bengali
Nepal:Kathmandu,rupee,Asia,Nepali
South Korea:Seoul,won,Asia,Korean
North Korea:Pyongyang,won,Asia,Korean
Vietnam:Hanoi,dong,Asia,Vietnamese
Thailand:Bangkok,baht,Asia,Thai
Indonesia:Jakarta,rupiah,Asia,Indonesian
Malaysia:Kuala Lumpur,ringgit,Asia,Malay
the Philippines:Manila,peso,Asia,Filipino
Mongolia:Ulaanbaatar,tugrik,Asia,Mongolian
Iran:Tehran,rial,Asia,Persian
Iraq:Baghdad,dinar,Asia,Arabic
Syria:Damascus,pound,Asia,Arabic
Lebanon:Beirut,pound,Asia,Arabic
Jordan:Amman,dinar,Asia,Arabic
Saudi Arabia:Riyadh,riyal,Asia,Arabic
Qatar:Doha,riyal,Asia,Arabic
Georgia:Tbilisi,lari,Asia,Georgian
Armenia:Yerevan,dram,Asia,Armenian
Egypt:Cairo,pound,Africa,Arabic
Morocco:Rabat,dirham,Africa,Arabic
Algeria:Algiers,dinar,Africa,Arabic
Tunisia:Tunis,dinar,Africa,Arabic
Libya:Tripoli,dinar,Africa,Arabic
Nigeria:Abuja,naira,Africa,English
Ghana:Accra,cedi,Africa,English
Kenya:Nairobi,shilling,Africa,Swahili
Uganda:Kampala,shilling,Africa,English
Ethiopia:Addis Ababa,birr,Africa,Amharic
Senegal:Dakar,franc,Africa,French
Angola:Luanda,kwanza,Africa,Portuguese
Zambia:Lusaka,kwacha,Africa,English
the United States:Washington,dollar,North America,English
Canada:Ottawa,dollar,North America,English
Mexico:Mexico City,peso,North America,Spanish
Cuba:Havana,peso,North America,Spanish
Jamaica:Kingston,dollar,North America,English
Guatemala:Guatemala City,quetzal,North America,Spanish
Costa Rica:San Jose,colon,North America,Spanish
Brazil:Brasilia,real,South America,Portuguese
Argentina:Buenos Aires,peso,South America,Spanish
Chile:Santiago,peso,South America,Spanish
Peru:Lima,sol,South America,Spanish
Colombia:Bogota,peso,South America,Spanish
Ecuador:Quito,dollar,South America,Spanish
Uruguay:Montevideo,peso,South America,Spanish
Paraguay:Asuncion,guarani,South America,Spanish
Australia:Canberra,dollar,Oceania,English
New Zealand:Wellington,dollar,Oceania,English
Fiji:Suva,dollar,Oceania,English""".splitlines()
}
ALIASES = {
    "the United States": ["the USA", "the US", "America", "USA"],
    "the United Kingdom": ["the UK", "Britain", "Great Britain", "UK"],
    "the Netherlands": ["Holland"],
}
ELEMENTS = """hydrogen H,helium He,lithium Li,beryllium Be,boron B,carbon C,nitrogen N,oxygen O,fluorine F,neon Ne,sodium Na,magnesium Mg,aluminium Al,silicon Si,
phosphorus P,sulfur S,chlorine Cl,argon Ar,potassium K,calcium Ca,scandium Sc,titanium Ti,vanadium V,chromium Cr,manganese Mn,iron Fe,cobalt Co,nickel Ni,copper Cu,
zinc Zn,gallium Ga,germanium Ge,arsenic As,selenium Se,bromine Br,krypton Kr,silver Ag 47,tin Sn 50,iodine I 53,platinum Pt 78,gold Au 79,mercury Hg 80,lead Pb 82,
uranium U 92""".replace("\n", "").split(",")
ELEMENT = {
    item.split()[0]: (item.split()[1], int([*item.split(), str(index + 1)][2])) for index, item in enumerate(ELEMENTS)
}
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth".split()
YOUNG = dict(
    pair.split("/")
    for pair in "dog/puppy cat/kitten cow/calf horse/foal sheep/lamb goat/kid pig/piglet hen/chick duck/duckling goose/gosling bear/cub lion/cub fox/cub wolf/pup frog/tadpole swan/cygnet deer/fawn kangaroo/joey elephant/calf owl/owlet eagle/eaglet whale/calf seal/pup".split()
)
OPPOSITES = dict(
    pair.split("/")
    for pair in """hot/cold big/small tall/short fast/slow open/closed day/night up/down left/right happy/sad old/new rich/poor hard/soft wet/dry light/dark
early/late full/empty high/low long/short near/far good/bad black/white strong/weak loud/quiet clean/dirty heavy/light thick/thin wide/narrow deep/shallow true/false begin/end win/lose
buy/sell push/pull in/out on/off first/last inside/outside love/hate sweet/sour young/old easy/difficult sharp/blunt smooth/rough north/south east/west before/after above/below
always/never give/take alive/dead brave/cowardly""".split()
)
PLURALS = dict(
    pair.split("/")
    for pair in "mouse/mice goose/geese child/children man/men woman/women foot/feet tooth/teeth ox/oxen sheep/sheep leaf/leaves knife/knives wolf/wolves city/cities box/boxes baby/babies person/people fish/fish cactus/cacti shelf/shelves potato/potatoes dog/dogs cat/cats bus/buses".split()
)
PAST = dict(
    pair.split("/")
    for pair in "go/went eat/ate see/saw take/took run/ran write/wrote give/gave come/came make/made think/thought buy/bought bring/brought speak/spoke drink/drank swim/swam sing/sang fly/flew know/knew begin/began find/found sleep/slept teach/taught catch/caught walk/walked play/played".split()
)
LEGS = {
    "spider": 8,
    "dog": 4,
    "cat": 4,
    "ant": 6,
    "bee": 6,
    "bird": 2,
    "horse": 4,
    "octopus": 8,
    "snake": 0,
    "cow": 4,
    "hen": 2,
    "crab": 10,
    "beetle": 6,
    "human": 2,
    "frog": 4,
}
SIDES = {
    "triangle": 3,
    "square": 4,
    "rectangle": 4,
    "pentagon": 5,
    "hexagon": 6,
    "heptagon": 7,
    "octagon": 8,
    "decagon": 10,
    "circle": 0,
    "cube": 6,
}
SOUNDS = dict(
    pair.split("/")
    for pair in "dog/woof cat/meow cow/moo sheep/baa duck/quack pig/oink hen/cluck owl/hoot lion/roar snake/hiss frog/croak bee/buzz horse/neigh mouse/squeak".split()
)

SINGLE = [
    (
        "The largest ocean is the Pacific.",
        "The Pacific.",
        "[what is|what's|which is|name] the [largest|biggest] ocean",
        "[what|which] ocean is the [largest|biggest]",
    ),
    (
        "The highest mountain is Mount Everest.",
        "Mount Everest.",
        "[what is|what's|which is|name] the [highest|tallest|biggest] mountain [|in the world|on earth]",
        "[what|which] mountain is the [highest|tallest]",
    ),
    (
        "The longest river is the Nile.",
        "The Nile.",
        "[what is|what's|which is|name] the longest river [|in the world|on earth]",
        "[what|which] river is the longest",
    ),
    (
        "The largest animal is the blue whale.",
        "The blue whale.",
        "[what is|what's|which is|name] the [largest|biggest] animal [|in the world|on earth]",
        "[what|which] animal is the [largest|biggest]",
    ),
    (
        "The fastest land animal is the cheetah.",
        "The cheetah.",
        "[what is|what's|which is|name] the fastest [land animal|animal|animal on land]",
        "[what|which] animal is the fastest",
    ),
    (
        "The tallest animal is the giraffe.",
        "The giraffe.",
        "[what is|what's|which is|name] the tallest animal [|in the world|on earth]",
        "[what|which] animal is the tallest",
    ),
    (
        "Water boils at 100 degrees Celsius.",
        "100 degrees Celsius.",
        "[when|at what temperature|at which temperature] does water boil",
        "[what is|what's] the boiling point of water",
        "how hot is boiling water",
    ),
    (
        "Water freezes at 0 degrees Celsius.",
        "0 degrees Celsius.",
        "[when|at what temperature|at which temperature] does water freeze",
        "[what is|what's] the freezing point of water",
    ),
    (
        "There are seven continents.",
        "Seven.",
        "how many continents are there",
        "[what is|what's] the number of continents",
    ),
    (
        "The continents are Africa, Antarctica, Asia, Europe, North America, Oceania and South America.",
        "Africa, Antarctica, Asia, Europe, North America, Oceania, South America.",
        "[what are|name|list|tell me] the [continents|seven continents]",
        "which continents are there",
    ),
    (
        "There are eight planets.",
        "Eight.",
        "how many planets are there [|in the solar system]",
        "[what is|what's] the number of planets",
    ),
    (
        "The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.",
        "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune.",
        "[what are|name|list|tell me] the [planets|eight planets] [|of the solar system]",
        "which planets are there",
    ),
    (
        "The largest planet is Jupiter.",
        "Jupiter.",
        "[what is|what's|which is|name] the [largest|biggest] planet",
        "[what|which] planet is the [largest|biggest]",
    ),
    (
        "The smallest planet is Mercury.",
        "Mercury.",
        "[what is|what's|which is|name] the smallest planet",
        "[what|which] planet is the smallest",
    ),
    (
        "The largest country is Russia.",
        "Russia.",
        "[what is|what's|which is|name] the [largest|biggest] country [|in the world|on earth]",
        "[what|which] country is the [largest|biggest]",
    ),
    (
        "The smallest country is Vatican City.",
        "Vatican City.",
        "[what is|what's|which is|name] the smallest country [|in the world|on earth]",
        "[what|which] country is the smallest",
    ),
    (
        "The largest continent is Asia.",
        "Asia.",
        "[what is|what's|which is|name] the [largest|biggest] continent",
        "[what|which] continent is the [largest|biggest]",
    ),
    (
        "A rainbow has seven colours: red, orange, yellow, green, blue, indigo and violet.",
        "Red, orange, yellow, green, blue, indigo, violet.",
        "[what are|name|list] the [colours|colors] of [the|a] rainbow",
        "how many [colours|colors] [has|does] a rainbow [have|]",
        "which [colours|colors] are in a rainbow",
    ),
    (
        "The formula of water is H2O.",
        "H2O.",
        "[what is|what's] the [formula|chemical formula] [of|for] water",
        "what is water made of",
        "what is h2o",
    ),
    ("The sky is blue.", "Blue.", "what [colour|color] is the sky"),
    ("Grass is green.", "Green.", "what [colour|color] is grass"),
    ("Snow is white.", "White.", "what [colour|color] is snow"),
    ("Blood is red.", "Red.", "what [colour|color] is blood"),
    ("A banana is yellow.", "Yellow.", "what [colour|color] is a banana"),
    (
        "The primary colours are red, yellow and blue.",
        "Red, yellow, blue.",
        "[what are|name] the primary [colours|colors]",
    ),
    (
        "Red and yellow make orange.",
        "Orange.",
        "what do [red and yellow|yellow and red] make",
        "mix [red and yellow|yellow and red]",
    ),
    (
        "Blue and yellow make green.",
        "Green.",
        "what do [blue and yellow|yellow and blue] make",
        "mix [blue and yellow|yellow and blue]",
    ),
    (
        "Red and blue make purple.",
        "Purple.",
        "what do [red and blue|blue and red] make",
        "mix [red and blue|blue and red]",
    ),
    (
        "There are 26 letters in the alphabet.",
        "26.",
        "how many letters [are in the alphabet|does the alphabet have|are there in the alphabet|are there]",
    ),
    (
        "The vowels are a, e, i, o and u.",
        "a, e, i, o, u.",
        "[what are|name|list] the vowels",
        "which letters are vowels",
    ),
    (
        "The alphabet is a b c d e f g h i j k l m n o p q r s t u v w x y z.",
        "a b c d e f g h i j k l m n o p q r s t u v w x y z",
        "[say|recite|write|give me|list|what is] the alphabet",
        "[say|do you know|tell me] [the|your] abc",
    ),
    (
        "Light travels at about 300,000 kilometres a second.",
        "300,000 km/s.",
        "how fast [is light|does light travel]",
        "[what is|what's] the speed of light",
    ),
    ("The Earth has one moon.", "One.", "how many moons does [the earth|earth] have"),
    ("The closest star is the Sun.", "The Sun.", "[what is|what's|which is] the [closest|nearest] star"),
    ("The opposite of yes is no.", "No.", "[what is|what's] the opposite of yes"),
    (
        "A year has four seasons: spring, summer, autumn and winter.",
        "Spring, summer, autumn, winter.",
        "[what are|name|list] the [four |]seasons",
        "how many seasons [are there|has a year|does a year have]",
    ),
    ("There are 1024 bytes in a kibibyte.", "1024.", "how many bytes [are in|in] a kibibyte"),
    (
        "The four directions are north, east, south and west.",
        "North, east, south, west.",
        "[what are|name] the [four |]directions",
        "[what are|name] the [cardinal|compass] directions",
    ),
]
