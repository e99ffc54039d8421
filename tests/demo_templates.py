"""Names and templates of the demo sets, written for paratune (CC0)."""

FIRST_NAMES = (
    *("Ana", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Lucas", "Marta"),
    *("Nils", "Olga", "Pedro", "Rosa", "Simon", "Teresa", "Victor"),
)
LAST_NAMES = (
    *("Almeida", "Berger", "Costa", "Duarte", "Ekman", "Fischer", "Garcia", "Holm", "Ivanov", "Jensen", "Keller"),
    *("Lindt", "Moreau", "Novak", "Olsen", "Prieto", "Quental", "Ribeiro", "Sousa", "Tavares"),
)
TOWNS = (
    *("Alden", "Brookfield", "Carmona", "Dunmore", "Eastport", "Farol", "Glenwood", "Harwick", "Ilha Verde", "Juniper"),
    *("Kingsford", "Lagoa", "Monte Alto", "Northbridge", "Oakham", "Porto Novo", "Redcliff", "Silverton", "Vale Longo"),
)
ORGANIZATIONS = (
    *("Atlas Bank", "Blue River Museum", "Central Library", "Delta Motors", "Eagle Press", "Green Valley School"),
    *("Harbour Trust", "Lighthouse Society", "North Star Airlines", "Old Mill Brewery", "Summit Hospital"),
    *("University of Lagoa", "Water Company of Alden", "Western Railway"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PLACES = (
    *("the market", "the library", "the old bridge", "the station", "the museum", "the harbour", "the school"),
    *("the park", "the theatre", "the town hall", "the bakery", "the river"),
)
THINGS = (
    *("a red bicycle", "a silver watch", "a wooden chair", "a pair of boots", "an old map", "a black umbrella"),
    *("a small radio", "a blue coat", "a box of books", "a violin", "a leather bag", "a copper lamp"),
)

EVENTS = (
    ("{who} bought {thing} at {place}{day}.", "{thing} was sold to {who} at {place}{day}."),
    ("{who} lost {thing} near {place}{day}.", "{thing} of {who} went missing close to {place}{day}."),
    ("{who} found {thing} behind {place}{day}.", "{thing} was discovered by {who} at the back of {place}{day}."),
    ("{who} repaired {thing} for a friend at {place}{day}.", "{thing} of a friend was fixed by {who} at {place}{day}."),
    ("{who} painted a picture of {thing} at {place}{day}.", "{thing} was the subject that {who} drew at {place}{day}."),
    ("{who} carried {thing} from home to {place}{day}.", "{who} brought {thing} along to {place}{day}."),
    ("{who} forgot {thing} at {place}{day}.", "{thing} was left behind at {place} by {who}{day}."),
    ("{who} gave {thing} to a child at {place}{day}.", "a child got {thing} as a gift from {who} at {place}{day}."),
)
"""An event, and the same event in other words."""

SENTENCES = (
    "PER was born in LOC and now works for ORG .",
    "The director of ORG , PER , arrived in LOC yesterday .",
    "ORG opened a new office in LOC last week .",
    "According to PER , the trains to LOC were late again .",
    "PER and PER met for the first time at ORG .",
    "The road between LOC and LOC will stay closed until spring .",
    "ORG paid for the concert of PER .",
    "In LOC it rained for the whole week .",
    "Nobody at ORG wanted to comment on the report .",
    "PER sold the house near LOC and moved to LOC .",
    "The letter from PER to ORG was never answered .",
    "Prices rose again this month , and the shops were empty .",
    "Last year ORG moved its archive from LOC to LOC .",
    "Yesterday PER won the race in LOC ahead of PER .",
)

ARTICLES = (
    (
        "Lighthouse of {town}",
        (
            ("The lighthouse of {town} was built in [{year}].", "When was the lighthouse of {town} built?"),
            ("It was designed by [{who}].", "Who designed the lighthouse of {town}?"),
            ("The tower is [{few} metres] high.", "How high is the tower?"),
            ("Visitors may climb it every [{day}].", "On which day may visitors climb the lighthouse?"),
        ),
    ),
    (
        "{who}",
        (
            ("{who} was a painter from [{town}].", "Where was {who} from?"),
            ("The first exhibition was in [{year}].", "When was the first exhibition of {who}?"),
            ("The teacher of {who} was [{other}].", "Who was the teacher of {who}?"),
            ("Today [{many} pictures] are known.", "How many pictures of {who} are known?"),
        ),
    ),
    (
        "Railway of {town}",
        (
            ("The railway of {town} leads to [{near}].", "Where does the railway of {town} lead?"),
            ("It was opened in [{year}] after a long dispute.", "When was the railway of {town} opened?"),
            ("The line is run by [{org}].", "Who runs the line?"),
            ("Each day it carries [{many} passengers].", "How many passengers does the railway carry each day?"),
        ),
    ),
    (
        "Market of {town}",
        (
            ("The market of {town} is held every [{day}].", "On which day is the market of {town} held?"),
            ("There are about [{few} stalls] with fruit, cheese and tools.", "How many stalls does the market have?"),
            ("Its hall was a gift of [{who}].", "Who gave the hall of the market?"),
            ("After a fire it was built again in [{later}].", "When was the hall built again?"),
        ),
    ),
    (
        "School of {town}",
        (
            ("The school of {town} has [{many} pupils].", "How many pupils does the school of {town} have?"),
            ("Its head is [{who}], who came from {near}.", "Who is the head of the school of {town}?"),
            ("The school was founded in [{year}].", "When was the school of {town} founded?"),
            ("Its library was paid for by [{org}].", "Who paid for the library of the school?"),
        ),
    ),
)
"""Title, and sentences with an answer in brackets and its question."""

ASKED = (
    "{who} wants to {purpose}. What does {who} need?",
    "What is used to {purpose}?",
    "To {purpose}, you take",
    "It is hard to {purpose} without",
)
TOOLS = (
    ("cut bread", "a knife"),
    ("write a letter", "a pen"),
    ("open a locked door", "a key"),
    ("stay dry in the rain", "an umbrella"),
    ("sweep the floor", "a broom"),
    ("drive a nail into wood", "a hammer"),
    ("see in the dark", "a torch"),
    ("tell the time", "a clock"),
    ("boil water", "a kettle"),
    ("eat soup", "a spoon"),
    ("dry wet hands", "a towel"),
    ("sew a button on a shirt", "a needle"),
    ("find the way in a foreign city", "a map"),
    ("take pictures of a wedding", "a camera"),
    ("measure the fever of a child", "a thermometer"),
    ("cut paper", "scissors"),
    ("comb long hair", "a comb"),
    ("cross the lake", "a boat"),
    ("keep milk cold", "a refrigerator"),
    ("wash clothes", "soap"),
    ("dig a hole in the garden", "a spade"),
    ("reach a high shelf", "a ladder"),
    ("send a parcel", "a stamp"),
    ("warm cold hands", "gloves"),
    ("read small print", "glasses"),
    ("catch fish", "a net"),
    ("bake a cake", "an oven"),
    ("play a melody", "a piano"),
    ("look at distant stars", "a telescope"),
    ("saw a branch off a tree", "a saw"),
    ("add large numbers", "a calculator"),
    ("listen to the news", "a radio"),
    ("paint a wall", "a brush"),
    ("sleep in the forest", "a tent"),
    ("climb a steep cliff", "a rope"),
    ("light a candle", "a match"),
    ("weigh flour", "a scale"),
    ("carry water from the well", "a bucket"),
    ("brush the teeth", "a toothbrush"),
    ("mow the grass", "a lawnmower"),
    ("pay at the market", "money"),
    ("travel to another country", "a passport"),
    ("wrap a present", "ribbon"),
    ("hang up a coat", "a hook"),
    ("drink coffee", "a cup"),
    ("clean the carpet", "a vacuum cleaner"),
    ("ride over the fields", "a horse"),
    ("fly to an island", "a plane"),
    ("cover the bed", "a blanket"),
    ("find north", "a compass"),
)
"""A purpose, and what it needs."""

TOPICS = (
    (
        "In {town} the bakers begin their work long before the sun rises.",
        "The dough rests for {few} hours before it is divided and shaped.",
        "{who} still bakes the dark bread of the valley in an oven that is heated with wood.",
        "On {day} the shop sells small cakes with almonds and honey.",
        "Fresh bread cools on wooden boards until the first customers arrive.",
        "Old bread is not thrown away but becomes soup or crumbs.",
    ),
    (
        "The train to {town} leaves {few} minutes after the full hour.",
        "Since {year} the line has had a second track, and delays have become rare.",
        "{who} travels to work by train because parking near {place} is expensive.",
        "In winter the staff clear the snow from the switches every morning.",
        "Passengers without a ticket can buy one from the conductor.",
        "On {day} a steam engine pulls the old carriages up the valley.",
    ),
    (
        "The river has flooded the lower streets of {town} {few} times in the last century.",
        "After the great flood of {year} the town built a wall of stone along the bank.",
        "Engineers measure the level of the water at {place} every hour.",
        "When snow melts in the mountains, the river rises within a day.",
        "{who} keeps a boat in the cellar, and has used it once.",
        "Fish return to the river where the water is clean and cold.",
    ),
    (
        "The orchestra of {town} was founded in {year} by {few} friends.",
        "They rehearse every {day} in a hall behind {place}.",
        "{who} plays the first violin and also teaches children.",
        "The players tune their instruments before the conductor enters.",
        "A new piece is practised slowly at first, then at its full speed.",
        "After the last note the audience was silent for a moment.",
    ),
    (
        "A garden needs water early in the morning, before the day becomes hot.",
        "{who} grows tomatoes, beans and {few} kinds of herbs behind {place}.",
        "Seeds are sown in spring, when the nights are no longer cold.",
        "Bees visit the flowers and carry pollen from one plant to the next.",
        "In autumn the leaves are collected and slowly become fresh soil.",
        "The gardeners of {town} have exchanged plants every {day} since {year}.",
    ),
    (
        "The old mill near {town} has ground no flour since {year}.",
        "Its wheel was turned by a small stream that comes from the hills.",
        "{who} bought the ruin and repaired the roof in {few} months.",
        "Today visitors can see how grain became flour and flour became bread.",
        "The heavy stones were brought here on carts with oxen.",
        "On {day} the wheel turns again for the children of the school.",
    ),
    (
        "The doctors of the clinic in {town} see about {few} patients an hour.",
        "{who} came with a fever and a cough that had lasted a week.",
        "The nurse measured the temperature and the pressure of the blood.",
        "Most patients recover at home with rest, warm drinks and sleep.",
        "Since {year} the clinic has had its own laboratory beside {place}.",
        "On {day} vaccinations are free for children and old people.",
    ),
    (
        "The library of {town} lends books, films and even tools.",
        "Each reader may take {few} books home for one month.",
        "{who} has worked there since the new building was opened.",
        "The oldest book in the collection was printed on thick paper and bound in leather.",
        "Every {day} a story is read aloud to the youngest visitors.",
        "A catalogue of all titles has been kept since {year}.",
    ),
    (
        "The path to the summit begins behind {place} and takes {few} hours.",
        "Hikers should carry water, warm clothes and a map.",
        "Above the forest the wind is strong even on a sunny day.",
        "{who} climbed the mountain alone for the first time in {year}.",
        "From the top one can see the sea and the roofs of {town}.",
        "Clouds come quickly in the afternoon, so it is wise to start early.",
    ),
    (
        "Fishing boats leave the port of {town} at night and return at dawn.",
        "{who} learned to mend nets from an uncle at the age of {few}.",
        "The catch is sold on the quay before it reaches the shops.",
        "In {year} a storm sank several boats, but all sailors were saved.",
        "The light of the tower can be seen from far across the sea.",
        "On {day} the market smells of salt, smoke and fresh fish.",
    ),
)
"""Sentences about a subject."""
