"""What the real model reads, longer than its sliding window (512 tokens).

`TABLES` leaves few ties between tokens (llama.cpp's 8-bit activations would break them anyhow); `PROSE` is prose,
numbers and other scripts.
"""

TABLES = """\
# Temperature tables

```python
def celsius_to_fahrenheit(celsius: float) -> float:
    \"\"\"Convert degrees Celsius to degrees Fahrenheit.\"\"\"
    return celsius * 9 / 5 + 32


def fahrenheit_to_celsius(fahrenheit: float) -> float:
    \"\"\"Convert degrees Fahrenheit to degrees Celsius.\"\"\"
    return (fahrenheit - 32) * 5 / 9


if __name__ == "__main__":
    for celsius in range(0, 101, 10):
        print(f"{celsius} degrees Celsius is {celsius_to_fahrenheit(celsius)} degrees Fahrenheit")
```

The output is:

```
0 degrees Celsius is 32.0 degrees Fahrenheit
10 degrees Celsius is 50.0 degrees Fahrenheit
20 degrees Celsius is 68.0 degrees Fahrenheit
30 degrees Celsius is 86.0 degrees Fahrenheit
40 degrees Celsius is 104.0 degrees Fahrenheit
```

The months of the year are January, February, March, April, May, June, July, August, September, October, November \
and December. The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.

"""

PROSE = """\
The lighthouse at the end of the harbour had not been lit for eleven years. Every evening the keeper's daughter \
climbed the ninety-three steps, wiped the salt from the glass, and looked out over the water as if somebody had asked \
her to. Nobody had. The fishing boats came home by satellite now, and the ferry, which used to arrive twice a day, \
came on Saturdays when the weather allowed it.

"You could sell it," her brother said. He was an accountant in the city and thought of most things as something that \
could be sold. "A hotel would pay well for a tower like that. Think of the view."

"I do think of the view," she said. "That is why I go up."

## How the lamp works

1. The lens is made of 24 panels of glass, arranged in four rings.
2. A motor of 0.5 kW turns it once every 20 seconds, so the light is seen 3 times per minute.
3. The old bulb drew 1000 W at 230 V; that is about 4.35 A.
4. On a clear night it could be seen from a distance of 18 nautical miles (33.3 km).

Der Leuchtturm steht seit 1871 auf dem Felsen. Le phare se dresse sur le rocher depuis 1871. El faro está sobre la \
roca desde 1871. 灯台は1871年から岩の上に立っている。Маяк стоит на скале с 1871 года.

In the winter of the great storm the harbour froze for the first time that anyone could remember. The ferry did not \
come, and then the telephone stopped, and then, on the fourth night, the satellite. It was the keeper's daughter who \
saw the boats first: four small lights, very far out, moving in a circle. She went down the ninety-three steps to the \
cellar, where the old generator stood under its cloth, and she pulled the cloth away. It took her two hours. At a \
quarter past three in the morning the lamp turned once, slowly, threw its beam across the ice, and turned again.

One after another, the four lights stopped moving in a circle. One after another, they turned towards the harbour.
"""
